"""Checkpoints of a training function's trial: all that it reported, and a name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.compat.reports.ranks import Ranks
from train_core.rank.distributed.pace import TAKEN, Pace
from train_core.storage.run_folder import RunFolder
from train_core.tune import TuneCheckpoint
from train_core.tune.generations import choose
from train_core.tune.parameters import of_trial


@pytest.mark.promise("tune-functions")
def test_who_gets_a_functions_checkpoint_begins_with_its_folder(
    start: Callable[..., Ranks], folder: RunFolder, tmp_path: Path
) -> None:
    ranks = start(1)
    reported = tmp_path / "reported"
    (reported / "deep").mkdir(parents=True)
    (reported / "deep" / "model.pt").write_bytes(b"weights")
    ranks.report([reported], {"epoch": 3})
    newest = folder.newest_reported()
    assert newest is not None
    named = TuneCheckpoint(
        run=folder.url, trial="1", step=1, name=str(newest.name), digest=newest.digest, epochs=3
    )
    copied = tmp_path / "copied"
    copied.mkdir()
    named.write(copied)
    assert (copied / "deep" / "model.pt").read_bytes() == b"weights"
    assert TuneCheckpoint.read(copied) == named
    asked = of_trial({"train_fn": "some.module:function"}, {"train_loop_config.rate": 1})
    found = choose(folder.storage, "search", "ab12c_00001", asked, named)
    assert found.run == "search-ab12c-00001"
    assert found.config.init_from == folder.store.uri(newest.key)
    # A function reads what it wants of the folder.
    assert not found.config.init_from_optimizer
    assert found.search.begins_with == newest.digest


def test_a_function_waits_at_a_report_for_the_one_before(start: Callable[..., Ranks]) -> None:
    ranks = start(2)
    pace = Pace(is_kept=True)
    pace.post_to(ranks.store, ranks.task.group)
    assert ranks.store.read(ranks.task.group, TAKEN) == "0"
    ranks.report([None, None])
    with pytest.raises(TimeoutError):
        ranks.report([None, None], wait_s=0.5)
    pace.take(1)
    for reporter in ranks.reporters:
        reporter.wait_for_all()
    assert ranks.number == 2
