"""A run whose function fails for good shows all that it reported, and may go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
from mlflow import MlflowClient

from evertrain_flows.databases import create_tracking_database
from tests.compat.reports.ranks import entries
from train_core import TrainConfig, fit, open_run
from train_core.client.run_summaries import run_status
from train_core.errors import ResourceError, UserCodeError
from train_core.storage.run_folder import RunFolder

# Ray starts workers while a test runs; what is left is looked at when the driver ended.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(240), pytest.mark.leaves]


@pytest.mark.promise("own-training-function")
def test_all_metrics_of_a_failed_run_are_shown_and_none_is_there_twice_when_it_goes_on(
    tmp_path: Path,
) -> None:
    tracking_uri = f"sqlite:///{tmp_path}/mlflow.db"
    create_tracking_database(tracking_uri)
    config = TrainConfig(
        train_fn="tests.compat.functions.plain:fails_between_two_folders",
        train_loop_config={"scratch": str(tmp_path)},
    )
    where: dict[str, Any] = {"storage": str(tmp_path / "runs"), "tracking_uri": tracking_uri}
    folder, client = RunFolder(where["storage"], "run"), MlflowClient(tracking_uri)

    def shown() -> list[tuple[int, float]]:
        (experiment,) = client.search_experiments(filter_string="name = 'evertrain'")
        asked = "tags.`evertrain.stage` = 'pipeline'"
        (run,) = client.search_runs([experiment.experiment_id], asked)
        history = client.get_metric_history(run.info.run_id, "epoch")
        return [(point.step, point.value) for point in history]

    with pytest.raises(UserCodeError, match="it fails for good"):
        fit(config, run="run", **where)
    assert run_status(folder).state == "failed"
    assert shown() == [(1, 0), (2, 1), (3, 2)]
    assert list(open_run(folder.url).metrics["epoch"]) == [0, 1, 2]
    assert [one.step for one in open_run(folder.url).checkpoints] == [1]
    (tmp_path / "go-on").touch()
    result = fit(config, run="run", **where)
    assert result.step == 7
    assert [entry.step for entry in entries(folder)] == [1, 2, 3, 4, 5, 6]
    assert shown() == [(step, step - 1) for step in range(1, 7)]
    assert [str(one.name) for one in folder.checkpoints()] == [
        "step-00000001-a0001",
        "step-00000004-a0002",
        "step-00000007-a0002",
    ]


@pytest.mark.promise("memory")
def test_a_worker_that_takes_too_much_memory_is_not_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Ray's memory monitor strikes when 3 GB more are used than now.
    memory = psutil.virtual_memory()
    used = memory.total - memory.available
    monkeypatch.setenv("RAY_memory_usage_threshold", f"{(used + 3e9) / memory.total:.3f}")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")
    config = TrainConfig(train_fn="tests.compat.functions.plain:takes_memory")
    with pytest.raises(
        ResourceError, match=r"rank 0 was ended by Ray's memory.*used / .*smaller batches in the"
    ) as raised:
        fit(config, storage=str(tmp_path), run="hungry", on_log=None)
    assert "\n" not in str(raised.value)
