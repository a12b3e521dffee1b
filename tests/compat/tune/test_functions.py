"""Trials of a training function: their workers are in the places that Tune has reserved."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train_core import list_runs
from train_core.errors import ConfigError
from train_core.tune import TuneCheckpoint

pytest.importorskip("ray.tune")

from ray import tune

from tests.compat.tune.watch import Watch


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.promise("tune-functions")
def test_a_functions_reports_reach_tune_with_its_folders(
    search: Callable[..., Any], tmp_path: Path
) -> None:
    watch = Watch()
    results = search(
        {"train_loop_config.num_epochs": tune.grid_search([2, 3])},
        run_config={"callbacks": [watch]},
        train_fn="tests.compat.functions.plain:save_and_resume",
        train_loop_config={"checkpoint_freq": 1},
    )
    assert not results.errors
    assert [one.metrics["training_iteration"] for one in results] == [2, 3]
    assert [one.metrics["epoch"] for one in results] == [1, 2]
    # Ray Train has reserved nothing of its own, so that both run at once on two CPUs.
    assert watch.most_running == 2
    assert watch.most_groups == 2
    assert {one.state for one in list_runs(str(tmp_path / "runs"))} == {"finished"}
    for result in results:
        with result.checkpoint.as_directory() as folder:
            names = {one.name for one in Path(folder).iterdir()}
        assert names == {"model.pt", "optimizer.pt", "extra_state.pt", "evertrain.json"}


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.promise("tune-functions")
def test_reports_without_a_folder_reach_tune_too(search: Callable[..., Any]) -> None:
    results = search({}, train_fn="tests.compat.functions.plain:metrics_only")
    assert not results.errors
    (result,) = results
    assert list(result.metrics_dataframe["loss"]) == [1.5, 1.25, 1.0]
    # Tune asks for one at the end: it names the run, of which nothing can be copied.
    named = TuneCheckpoint.of(result.checkpoint)
    assert named.run == result.metrics["evertrain/run"]
    with pytest.raises(ConfigError, match="has reported no checkpoint"):
        named.checkpoint()
