"""The folder of another run that a training function begins with."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.reports.ranks import Ranks, write
from train_core.functions.init_folder import find_reported, pinned_origin, reported_at
from train_core.storage.cleanup.delete_checkpoint import delete_unless_pinned
from train_core.storage.records.names import PINS
from train_core.storage.records.run_record import Origin
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter


@pytest.fixture
def origin(folder: RunFolder, start: Callable[..., Ranks], tmp_path: Path) -> Origin:
    start(1).report([write(tmp_path / "1", a="1")], {"loss": 1})
    return find_reported(folder.name, folder.storage)


def test_it_stays_as_long_as_an_attempt_may_begin_with_it(
    folder: RunFolder, origin: Origin
) -> None:
    writer = RunWriter(folder, 1)
    with pinned_origin(origin, job=""):
        assert not delete_unless_pinned(writer, "step-00000001-a0001")
    assert delete_unless_pinned(writer, "step-00000001-a0001")


@pytest.mark.parametrize("storage_url", ["local"], indirect=True)
def test_one_that_cannot_be_pinned_is_read_all_the_same(folder: RunFolder, origin: Origin) -> None:
    # Where the pins of the run would be, nothing can be written.
    folder.store.delete(PINS)
    folder.store.write(PINS, b"")
    with pinned_origin(origin, job=""):
        assert reported_at(origin)[1].step == 1
