"""What the driver gets of this room, by the name in `entry_points`: the runner of a function.

It is imported before Ray is, and imports Ray Train when a request is checked.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

from train_core.cluster.lent import lent_places
from train_core.cluster.runtime import RaySettings
from train_core.config import TrainConfig
from train_core.driver.runner import Runner
from train_core.errors import ConfigError, EvertrainError, words_of
from train_core.policy.checkpoints.selection import unmeasured
from train_core.requests import DriverRequest
from train_core.storage.committed import with_files
from train_core.storage.records.journal import Entry
from train_core.storage.records.names import RAY_SNAPSHOT_JSON
from train_core.storage.run_folder import Commit, RunFolder
from train_core.timing import TIMING, Timing

if TYPE_CHECKING:
    # They import torch, for which the start of Ray does not wait.
    from train_core.driver.held_run import HeldRun
    from train_core.driver.preparing.preflight import Checked
    from train_core.driver.ray_session import RaySession
    from train_core.functions.launcher import FunctionLauncher

_log = logging.getLogger("train_core.driver")


class FunctionRunner(Runner):
    """A training function, by Ray Train."""

    def __init__(self) -> None:
        self._launcher: FunctionLauncher | None = None

    def uncovered(self, after: int) -> Iterable[Entry]:
        """Reports without a folder, which the next one with a folder commits."""
        launcher = self._launcher
        return launcher.uncovered(after) if launcher else ()

    def ray_settings(self, timing: Timing) -> RaySettings:
        """How often Ray Train polls its workers; all else is as Ray does it by itself.

        In a trial of a search no process of Ray's looks for nodes that will go: each trial would
        have one, and what becomes of the trial then is Tune's matter.
        """
        interval_s = str(timing.functions.controller_poll_s)
        environment = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": interval_s}
        if lent_places():
            environment["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "0"
        return RaySettings(environment=environment)

    def check(self, folder: RunFolder, request: DriverRequest, ray: RaySession) -> Checked:
        """Check the function, what its trainer says, and the request."""
        config = request.config
        try:
            from train_core.functions.trainer_settings import with_trainers_settings
        except ImportError as error:
            raise ConfigError(
                f"training function {config.train_fn or config.trainer} needs Ray Train, which "
                f"cannot be imported ({words_of(error)}): pip install 'ray[train]'"
            ) from error
        from train_core.functions.checks import check_function

        recorded = folder.newest_request().config if folder.exists() else None
        nodes_wait_s = TIMING.nodes_wait_s if recorded else 0
        if config.trainer:
            # A factory may read a dataset by Ray.
            ray.join(config, nodes_wait_s=nodes_wait_s)
            ray.wait_until_up()
        decided = with_trainers_settings(config, recorded, nodes_wait_s=nodes_wait_s)
        return check_function(folder, request.model_copy(update={"config": decided}))

    def train(
        self, held: HeldRun, config: TrainConfig, ray: RaySession, timing: Timing, job: str
    ) -> Commit:
        """Run the function, and its validations beside it and after it."""
        from train_core.functions.launcher import FunctionLauncher
        from train_core.functions.validations import Validations

        folder = held.writer.folder
        validations = Validations(folder, config, timing.functions)
        try:
            with validations.running():
                self._launcher = FunctionLauncher(timing, job, held.pace)
                newest = held.supervisor.train(config, self._launcher)
                validations.finish(held.check)
        finally:
            _list_for_ray(held, config)
        # With a predictor, evaluate measures more.
        if not config.predictor:
            metrics = [one.metrics for one in with_files(folder.checkpoints())]
            if said := unmeasured(config.monitor, metrics):
                _log.warning("%s", said)
        return newest


def _list_for_ray(held: HeldRun, config: TrainConfig) -> None:
    """Write the checkpoints that there are where `Result.from_path` of Ray Train looks for them.

    Ray's own list has those of the last attempt, and still those that retention deleted.
    """
    from train_core.functions.ray_checkpoints import ray_snapshot

    try:
        if snapshot := ray_snapshot(held.writer.folder, config):
            held.writer.write(RAY_SNAPSHOT_JSON, snapshot)
    except (EvertrainError, OSError) as error:
        # evertrain itself does not read it.
        _log.warning("Ray's Result.from_path does not show this run: %s", error)
