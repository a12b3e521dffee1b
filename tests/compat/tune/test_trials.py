"""Trials of a search are runs on Tune's own Ray, in the places that Tune has reserved."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from evertrain_flows.search import retrain_best
from train_core import list_runs
from train_core.client.checkpoint import Checkpoint
from train_core.errors import ConfigError
from train_core.storage.coordination import lease
from train_core.storage.run_folder import RunFolder
from train_core.tune import TuneCheckpoint
from train_core.tune.trial import Trial

pytest.importorskip("ray.tune")

from ray import tune

from tests.compat.tune.watch import Watch


def telling_who_has_the_run(made: type[Trial]) -> type[Trial]:
    """The same trials; at each report they tell whether a process has the run, and how it ended."""

    class Telling(made):  # type: ignore[misc, valid-type]
        def step(self) -> dict[str, Any]:
            result = super().step()
            holder, end = lease.holder_and_end(RunFolder.at(result["evertrain/run"]).store)
            return {**result, "is_held": holder is not None, "end": end}

    return Telling


@pytest.mark.timeout(300)
@pytest.mark.promise("tune-trials", "tune-stopped")
@pytest.mark.slow
def test_trials_are_runs_on_tunes_ray_and_who_is_stopped_is_shown_so(
    search: Callable[..., Any], runs: Callable[[], dict[str, RunFolder]], tmp_path: Path
) -> None:
    watch = Watch()

    def stops(trial: str, result: dict[str, Any]) -> bool:
        return bool(result["validation/score"] == 1 and result["training_iteration"] == 2)

    results = search(
        {"settings.score": tune.grid_search([1, 3])},
        run_config={"callbacks": [watch], "stop": stops},
        kind=telling_who_has_the_run,
        epochs=6,
    )
    assert not results.errors
    stopped, finished = results
    assert [one.metrics["training_iteration"] for one in results] == [2, 6]
    # Each has a CPU of two for its worker, and nothing for the process that follows it.
    assert watch.most_running == 2
    assert watch.most_groups == 2
    assert len(watch.heads) == 1
    states = {one.run: one.state for one in list_runs(str(tmp_path / "runs"))}
    assert sorted(states.values()) == ["finished", "stopped by the scheduler"]
    for result, state in ((stopped, "stopped by the scheduler"), (finished, "finished")):
        folder = RunFolder.at(result.metrics["evertrain/run"])
        assert states[folder.name] == state
        assert folder.record().search.trial == result.metrics["trial_id"]
        # What Tune has of it is the run's own, and can be used without it.
        named = TuneCheckpoint.of(result.checkpoint).checkpoint()
        assert named.name == result.metrics["evertrain/checkpoint"]
        assert named.step == result.metrics["evertrain/step"]
        assert named.metrics["validation/loss"] == result.metrics["validation/loss"]
        with result.checkpoint.as_directory() as copied, named.as_directory() as own:
            weights = Path(copied, "model.safetensors").read_bytes()
            assert weights == Path(own, "model.safetensors").read_bytes()
        assert Checkpoint.from_directory(named.uri).name == named.name
    # Nothing of it was left to be killed as the search ended.
    assert list(finished.metrics_dataframe["is_held"]) == [True] * 5 + [False]
    assert finished.metrics["end"] == "FINISHED"
    # All reports reached Tune, each with a checkpoint.
    assert list(finished.metrics_dataframe["evertrain/step"]) == [4, 8, 12, 16, 20, 24]
    assert len(finished.best_checkpoints) == 6


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.promise("tune-trials")
def test_trials_may_have_one_process_after_another(
    search: Callable[..., Any], tmp_path: Path
) -> None:
    def stops(trial: str, result: dict[str, Any]) -> bool:
        return bool(result["validation/score"] == 2)

    results = search(
        {"settings.score": tune.grid_search([1, 2, 3])},
        tune_config={"reuse_actors": True, "max_concurrent_trials": 1},
        run_config={"stop": stops},
        epochs=4,
    )
    assert not results.errors
    assert len({one.metrics["pid"] for one in results}) == 1
    assert [one.metrics["validation/score"] for one in results] == [1, 2, 3]
    assert [one.metrics["training_iteration"] for one in results] == [4, 1, 4]
    states = [one.state for one in list_runs(str(tmp_path / "runs"))]
    assert sorted(states) == ["finished", "finished", "stopped by the scheduler"]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.promise("tune-best")
def test_the_best_of_a_search_that_was_broken_off_is_taken_by_name_alone(
    search: Callable[..., Any],
) -> None:
    interrupted: list[str] = []

    def interrupts(trial: str, result: dict[str, Any]) -> bool:
        if not interrupted:
            interrupted.append(trial)
            signal.raise_signal(signal.SIGINT)
        return False

    results = search(
        {"settings.score": tune.grid_search([1, 3])}, run_config={"stop": interrupts}, epochs=9
    )
    told = r"2 of 2 trials were under way when the search ended.* retrain_best\('search-"
    with pytest.raises(ConfigError, match=told):
        retrain_best(results, metric="validation/score", mode="max")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.promise("tune-trials")
def test_a_wrong_parameter_ends_its_trial_alone(search: Callable[..., Any]) -> None:
    results = search({"batch_size": tune.grid_search([4, -1])}, epochs=1)
    (error,) = results.errors
    assert "batch_size: Input should be greater than or equal to" in str(error)
    assert sorted(one.error is None for one in results) == [False, True]
    results = search({"setings.score": tune.grid_search([4])}, epochs=1, name="second")
    (error,) = results.errors
    assert "setings.score" in str(error)
