"""Trials that die, and searches that are restored, go on with the runs that they were at."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from train_core import list_runs
from train_core.storage.coordination import lease
from train_core.storage.run_folder import RunFolder
from train_core.tune import trainable

pytest.importorskip("ray.tune")

from ray import tune
from ray.tune.error import TuneError

from tests.compat.tune.watch import Watch


class Strike(tune.Callback):
    """Does something once, after the first trial's second report."""

    def __init__(self, strike: Callable[[dict[str, Any]], None]) -> None:
        self._strike = strike
        self.has_struck = False

    def on_trial_result(
        self, iteration: int, trials: Any, trial: Any, result: Any, **_: Any
    ) -> None:
        if result["training_iteration"] == 2 and not self.has_struck:
            self.has_struck = True
            self._strike(result)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.promise("tune-restored")
def test_a_trial_whose_process_is_killed_goes_on_with_its_run(
    search: Callable[..., Any], runs: Callable[[], dict[str, RunFolder]]
) -> None:
    strike, watch = Strike(lambda result: os.kill(result["pid"], signal.SIGKILL)), Watch()
    results = search(
        {},
        run_config={
            "callbacks": [strike, watch],
            "failure_config": tune.FailureConfig(max_failures=1),
        },
        epochs=5,
    )
    assert strike.has_struck
    assert not results.errors
    # Tune goes on from the newest checkpoint that it has: it may have one less than reports.
    assert list(dict.fromkeys(watch.steps)) == [4, 8, 12, 16, 20]
    (folder,) = runs().values()
    assert lease.newest_attempt(folder.store) == 2
    newest = folder.newest()
    assert newest is not None
    assert newest.step == 20


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.promise("tune-restored")
def test_the_death_of_a_worker_is_no_failure_of_its_trial(
    search: Callable[..., Any], runs: Callable[[], dict[str, RunFolder]]
) -> None:
    def kill_worker(_: dict[str, Any]) -> None:
        names = {one: one.cmdline() for one in psutil.Process().children(recursive=True)}
        first = min(one.pid for one, name in names.items() if "TrainWorker" in " ".join(name))
        os.kill(first, signal.SIGKILL)

    strike = Strike(kill_worker)
    (result,) = search({}, run_config={"callbacks": [strike]}, epochs=5, num_workers=2)
    assert strike.has_struck
    assert result.error is None
    assert list(result.metrics_dataframe["evertrain/step"]) == [4, 8, 12, 16, 20]
    (folder,) = runs().values()
    assert lease.newest_attempt(folder.store) == 2


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.promise("tune-restored")
def test_a_search_that_died_is_restored_and_its_trials_go_on(
    search: Callable[..., Any], tmp_path: Path
) -> None:
    marker = tmp_path / "died"

    def die(_: dict[str, Any]) -> None:
        # What is restored has this callback, too.
        if not marker.exists():
            marker.touch()
            raise RuntimeError("the search dies")

    space = {"settings.score": tune.grid_search([1, 2, 3])}
    with pytest.raises(TuneError, match="the search dies"):
        search(space, run_config={"callbacks": [Strike(die)]}, epochs=5)
    parameters = {"batch_size": 4, "epochs": 5, "accept": ["everything"]}
    storage = str(tmp_path / "runs")
    before = {one.run for one in list_runs(storage)}
    assert before
    restored = tune.Tuner.restore(
        str(tmp_path / "tune" / "search"),
        trainable=trainable("tests.compat.tune.workloads:Searched", storage=storage, **parameters),
        resume_errored=True,
    )
    results = restored.fit()
    assert not results.errors
    assert [one.metrics["training_iteration"] for one in results] == [5] * 3
    after = {one.run: one.state for one in list_runs(storage)}
    assert len(after) == 3
    assert before <= set(after)
    assert set(after.values()) == {"finished"}
