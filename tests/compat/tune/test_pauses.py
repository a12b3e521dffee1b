"""A trial that is paused where CPUs are free: it begins anew while its run is still being saved."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from train_core.storage.coordination import lease
from train_core.storage.run_folder import RunFolder
from train_core.timing import TIMING

pytest.importorskip("ray.tune")

from ray import tune
from ray.tune.schedulers import FIFOScheduler, TrialScheduler

from tests.compat.tune.watch import Watch


class PauseOnce(FIFOScheduler):
    """Pauses a trial at its second report, once, and goes on with it as soon as there is room."""

    def __init__(self, gate: Path) -> None:
        super().__init__()
        self._gate = gate

    def on_trial_result(self, tune_controller: Any, trial: Any, result: dict[str, Any]) -> Any:
        if result["training_iteration"] != 2 or self._gate.exists():
            return TrialScheduler.CONTINUE
        # The training waits for Tune at its next validation, whose first batch does not come.
        self._gate.write_text("closed")
        return TrialScheduler.PAUSE


class OpenLater(tune.Callback):
    """Lets the training go on when the trial runs again for so long that it would be refused."""

    def __init__(self, gate: Path) -> None:
        self._gate = gate
        self.starts = 0

    def on_trial_start(self, iteration: int, trials: Any, trial: Any, **_: Any) -> None:
        self.starts += 1
        if self.starts == 2:
            open_s = 4 * TIMING.coordination.dying_grace_s
            threading.Timer(open_s, self._gate.write_text, ["open"]).start()


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.promise("tune-restored")
def test_a_trial_that_runs_again_before_its_run_is_saved_waits_for_it(
    search: Callable[..., Any], runs: Callable[[], dict[str, RunFolder]], tmp_path: Path
) -> None:
    gate = tmp_path / "gate"
    callback, watch = OpenLater(gate), Watch()
    results = search(
        {"settings.gate": str(gate)},
        run_config={"callbacks": [callback, watch]},
        tune_config={"scheduler": PauseOnce(gate)},
        epochs=5,
    )
    assert not results.errors
    assert callback.starts == 2
    (result,) = results
    assert watch.steps == [4, 8, 12, 16, 20]
    assert result.metrics["training_iteration"] == 5
    # One run, which has gone on.
    (folder,) = runs().values()
    assert lease.newest_attempt(folder.store) == 2
