"""The benchmark of listings runs, in small."""

from pathlib import Path

import pytest

from benchmarks.listing import LISTINGS, grow
from tests.benchmarks.quick import quick
from train_core.client.checkpoints import list_checkpoints, verify_run
from train_core.client.run_summaries import list_runs
from train_core.storage.run_folder import RunFolder


def test_what_is_listed_is_a_good_run(tmp_path: Path) -> None:
    grow(tmp_path, "run", 3)
    folder = RunFolder(str(tmp_path), "run")
    assert not [one for one in verify_run(folder) if one.faults]
    assert [one.step for one in list_checkpoints(folder)] == [1, 2, 3]
    assert [one.state for one in list_runs(folder.storage)] == ["finished"]


@pytest.mark.slow
def test_a_small_run_has_every_figure() -> None:
    figures, _ = quick("listing", "--count", "3", "--rounds", "1")
    assert figures["seconds"].keys() == LISTINGS.keys()
    assert figures["list_3_s"] > 0
