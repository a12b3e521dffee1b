"""How the driver trains a workload, and how a training function: the one place where they part.

What differs between them as a fact is in `train_core/config/trainable.py`. A training function is
trained by the room of Ray Train, `train_core/functions`, which no module imports.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from pkgutil import resolve_name
from typing import TYPE_CHECKING, assert_never

from train_core.cluster.runtime import POOL_SETTINGS, RaySettings
from train_core.config import FunctionTraining, TrainConfig, WorkloadTraining
from train_core.entry_points import FUNCTION_RUNNER
from train_core.requests import DriverRequest
from train_core.storage.records.journal import Entry
from train_core.storage.run_folder import Commit, RunFolder
from train_core.timing import Timing

if TYPE_CHECKING:
    # They import torch, or this module.
    from train_core.driver.held_run import HeldRun
    from train_core.driver.preparing.preflight import Checked
    from train_core.driver.ray_session import RaySession


class Runner(ABC):
    """Checks and trains what a configuration names."""

    @abstractmethod
    def ray_settings(self, timing: Timing) -> RaySettings:
        """What it wants of Ray, which is not imported yet."""

    @abstractmethod
    def check(self, folder: RunFolder, request: DriverRequest, ray: RaySession) -> Checked:
        """Check all that can be checked without compute; writes nothing that stays.

        Raises ConfigError for what is wrong.
        """

    def uncovered(self, after: int) -> Iterable[Entry]:
        """What was reported after the report of that number, and no commit covers yet."""
        return ()

    @abstractmethod
    def train(
        self, held: HeldRun, config: TrainConfig, ray: RaySession, timing: Timing, job: str
    ) -> Commit:
        """The last checkpoint of the training. Raises what `Supervisor.train` raises.

        `job`: the Ray job that runs this driver; empty on one machine.
        """


class PoolRunner(Runner):
    """A workload, by evertrain's loop on a pool of workers."""

    def ray_settings(self, timing: Timing) -> RaySettings:
        """Those of the pool."""
        return POOL_SETTINGS

    def check(self, folder: RunFolder, request: DriverRequest, ray: RaySession) -> Checked:
        """Check the workload, its data and the request."""
        from train_core.driver.preparing.preflight import check

        return check(folder, request)

    def train(
        self, held: HeldRun, config: TrainConfig, ray: RaySession, timing: Timing, job: str
    ) -> Commit:
        """Train on the pool of the session."""
        from train_core.driver.attempts.pool_launcher import PoolLauncher

        pool = ray.pool_for_training(config)
        return held.supervisor.train(config, PoolLauncher(pool, pace=held.pace))


def runner_of(config: TrainConfig) -> Runner:
    """The runner of what the configuration trains."""
    match config.trainable:
        case WorkloadTraining():
            return PoolRunner()
        case FunctionTraining():
            registered: type[Runner] = resolve_name(FUNCTION_RUNNER)
            return registered()
        case other:
            assert_never(other)
