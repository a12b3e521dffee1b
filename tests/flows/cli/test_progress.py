from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from flows.cli.progress import _Bar, _Lines
from train_core.client.live import Live

LIVE = Live(stage="train", attempt=1, step=6, total_steps=10, epoch=0, epochs=1, loss=0.5, time=1.0)
WAITS, TRAINS = ("train", None), ("train", LIVE)


@pytest.mark.parametrize(
    ("readings", "shown", "not_shown"),
    [
        ([], "prepare", "train"),
        ([WAITS], "train", "step"),
        ([WAITS], "waiting for the training", "step"),
        ([WAITS, TRAINS], "step 6/10", "waiting"),
        # Nothing new since the last look.
        ([WAITS, TRAINS, WAITS], "step 6/10", "waiting"),
        ([WAITS, TRAINS, ("evaluate validation", None)], "evaluate validation", "step"),
    ],
)
def test_the_bar_says_where_the_pipeline_is(
    readings: list[tuple[str, Live | None]], shown: str, not_shown: str
) -> None:
    console = Console(file=StringIO(), force_terminal=True, width=120)
    bar = _Bar(console)
    for stage, live in readings:
        bar.show([stage], live)
    # Its last frame is drawn when it is closed.
    bar.open()
    bar.close()
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert shown in text
    assert not_shown not in text


def test_lines_tell_each_stage_once_also_one_that_was_over_before_it_was_looked_at() -> None:
    console = Console(file=StringIO(), width=120)
    lines = _Lines(console)
    lines.open()
    lines.show(["prepare"], None)
    lines.show(["prepare", "train"], LIVE)
    lines.show(["prepare", "train", "evaluate validation", "infer"], None)
    lines.show(["prepare", "train", "evaluate validation", "infer"], None)
    assert isinstance(console.file, StringIO)
    shown = console.file.getvalue().splitlines()
    assert shown == ["prepare", "train", "evaluate validation", "infer"]
