"""The curves of a run: one picture, whoever shows it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rank.alone import run
from train_core.rank.metrics.figures import curves, curves_until, png
from train_core.storage.records.journal import Entry
from train_core.storage.run_folder import RunFolder


@pytest.mark.parametrize("name", ["$\\x$", "a$b$c", "\x1b[31m", "x" * 10_000, "a\nb", "_hidden"])
def test_a_metric_of_any_name_is_drawn(name: str) -> None:
    """Between two dollars Matplotlib expects a formula."""
    entries = [Entry(step=step, time=0, metrics={name: step / 2}) for step in (1, 2)]
    assert png(curves(entries)).startswith(b"\x89PNG")


def test_the_curves_of_a_checkpoint_are_drawn_once_and_those_of_the_next_anew(
    tmp_path: Path,
) -> None:
    folder = RunFolder(str(tmp_path), "run")
    run(folder, batch_size=32, epochs=2, checkpoint_every_steps=2, keep_last=99)
    *_, earlier, newest = folder.checkpoints()
    first = curves_until(earlier, folder.store)
    assert first.startswith(b"\x89PNG")
    assert curves_until(earlier, folder.store) is first
    assert curves_until(newest, folder.store) != first
