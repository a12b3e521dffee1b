"""What Ray's own `Result.from_path` shows of a run folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from ray.train import Result

from tests.compat.reports.ranks import Ranks, write
from train_core import TrainConfig
from train_core.functions.ray_checkpoints import filesystem_of, ray_snapshot
from train_core.storage.cleanup.retention_after_commit import delete_superseded
from train_core.storage.records.names import RAY_SNAPSHOT_JSON
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter


def shown_by_ray(folder: RunFolder, config: TrainConfig) -> Result:
    snapshot = ray_snapshot(folder, config)
    assert snapshot is not None
    folder.store.write(RAY_SNAPSHOT_JSON, snapshot)
    return Result.from_path(folder.store.path(""), filesystem_of(folder.store))


def test_it_has_the_checkpoints_of_all_attempts_that_retention_kept_as_they_were_reported(
    folder: RunFolder, start: Callable[..., Ranks], tmp_path: Path
) -> None:
    rules = {"keep_last": 1, "keep_best": 1, "monitor": "loss", "monitor_order": "min"}
    losses = {1: 0.1, 2: 0.3, 3: 0.2}
    first = start(1, **rules)
    for number in (1, 2):
        source = write(tmp_path / f"{number}", text=f"{number}")
        first.report([source], {"loss": losses[number], "epoch": number})
    second = start(1, **rules)
    second.report([write(tmp_path / "3", text="3")], {"loss": losses[3], "epoch": 3})
    second.end()
    delete_superseded(RunWriter(folder, 2), second.task.config)
    found = shown_by_ray(folder, second.task.config)
    # Ray has the best one last.
    assert [metrics for _, metrics in found.best_checkpoints or []] == [
        {"rank": 0, "loss": losses[number], "epoch": number} for number in (3, 1)
    ]
    assert found.metrics == {"rank": 0, "loss": 0.2, "epoch": 3}
    assert found.checkpoint is not None
    with found.checkpoint.as_directory() as place:
        assert Path(place, "text").read_text() == "3"
    best = found.get_best_checkpoint("loss", "min")
    assert best is not None
    with best.as_directory() as place:
        assert Path(place, "text").read_text() == "1"


def test_a_run_without_checkpoints_has_no_list_for_ray(
    folder: RunFolder, start: Callable[..., Ranks]
) -> None:
    ranks = start(1)
    ranks.report([None], {"loss": 1})
    ranks.end()
    assert ray_snapshot(folder, ranks.task.config) is None
    with pytest.raises(RuntimeError, match=f"{RAY_SNAPSHOT_JSON} doesn't exist"):
        Result.from_path(folder.store.path(""), filesystem_of(folder.store))
