"""Intercepts what a training function calls of Ray Train in its worker, such as `report`.

This is the one file with private names of Ray Train. `set_train_fn_utils` takes the object that
every public function of `ray.train` calls, whenever the function has imported it.
tests/compat/test_private_names.py fails if Ray changes one of them.
"""

from __future__ import annotations

import functools
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import ray
from ray.train import Checkpoint
from ray.train.v2._internal.callbacks.placement_group_callback import PlacementGroupCleanerCallback
from ray.train.v2._internal.exceptions import RayTrainError, WorkerHealthCheckFailedError
from ray.train.v2._internal.execution.callback import ControllerCallback, WorkerGroupCallback
from ray.train.v2._internal.execution.context import get_train_context
from ray.train.v2._internal.execution.train_fn_utils import (
    DistributedTrainFnUtils,
    set_train_fn_utils,
)
from ray.train.v2._internal.execution.worker_group.placement_group_handle import (
    DefaultPlacementGroupHandle,
)
from ray.train.v2._internal.execution.worker_group.worker_group import WorkerGroup
from ray.train.v2.api.report_config import CheckpointConsistencyMode, CheckpointUploadMode
from ray.train.v2.api.reported_checkpoint import ReportedCheckpoint, ReportedCheckpointStatus
from ray.util.placement_group import PlacementGroup

from train_core.errors import CheckpointError
from train_core.functions.init_folder import reported_at
from train_core.functions.ray_checkpoints import CommittedCheckpoint
from train_core.functions.reports.channel import ReportChannel
from train_core.functions.reports.plain_metrics import plain
from train_core.functions.reports.reported_folder import FolderSource, RunPlaces
from train_core.functions.reports.reporter import Reporter
from train_core.functions.task import (
    ABORT,
    DamagedFolderError,
    FunctionTask,
    Report,
    Settled,
    TrainingEnds,
)
from train_core.inside import mark_this_process, note_sigterm
from train_core.rank.checkpoint.verified_folder import cache_of, verified_folder
from train_core.rank.distributed.rendezvous import Membership, choose_interfaces
from train_core.storage.records.names import CHECKPOINTS, REPORTED_FOLDER, CheckpointName
from train_core.storage.run_folder import Commit
from train_core.storage.run_writer import RunWriter
from train_core.text.log_lines import set_up_own_logging

__all__ = [
    "EndWithDriver",
    "PlaceWorkers",
    "PrepareProcesses",
    "RayTrainError",
    "WorkerCalls",
    "failure_of_worker",
    "keep_lent_places",
    "resources_of",
    "with_intercepted_calls",
]


def resources_of(scaling: Any) -> dict[str, float]:
    """What each worker of a ScalingConfig reserves, with Ray's own defaults."""
    return dict(scaling._resources_per_worker_not_none)  # noqa: SLF001 (nothing public has them)


def failure_of_worker(error: BaseException) -> BaseException:
    """What Ray says of a worker's process, if the error is about it; else the error itself."""
    if isinstance(error, WorkerHealthCheckFailedError):
        return error.health_check_failure
    return error


def with_intercepted_calls(function: Callable[..., Any], task: FunctionTask) -> Callable[..., Any]:
    """The training function, which reports into the run folder."""

    # Ray counts the parameters of what it is given, through this.
    @functools.wraps(function)
    def run(*config: Any) -> None:
        mark_this_process("worker")
        set_up_own_logging(sys.stderr)
        utils = WorkerCalls(task)
        set_train_fn_utils(utils)
        try:
            # Ray would send back what it returns by pickle, and the driver may lack its classes.
            utils.end(function(*config))
        finally:
            utils.close()

    return run


class WorkerCalls(DistributedTrainFnUtils):
    """The calls of a training function on one worker: Ray's, but for reports and checkpoints."""

    def __init__(self, task: FunctionTask) -> None:
        context = get_train_context()
        self._task, self._folder = task, task.folder
        storage = context.storage_context
        self._places = RunPlaces(
            RunWriter(self._folder, task.attempt),
            storage.storage_filesystem,
            storage.experiment_fs_path,
            cache_of(self._folder, task.attempt),
        )
        rank, world_size = context.get_world_rank(), context.get_world_size()
        self._reporter = Reporter(task, rank, world_size)
        self._counting = threading.Lock()
        start = CheckpointName.parse(task.start or "")
        self._number = start.step if start else 0

    def report(
        self,
        metrics: dict[str, Any],
        checkpoint: Checkpoint | None = None,
        checkpoint_dir_name: str | None = None,
        checkpoint_upload_mode: CheckpointUploadMode = CheckpointUploadMode.SYNC,
        delete_local_checkpoint_after_upload: bool | None = None,
        checkpoint_upload_fn: Callable[[Checkpoint, str], Checkpoint] | None = None,
        validation: Any = False,
    ) -> None:
        """Store what is reported, and tell Ray of it as `ray.train.report` does.

        Raises TrainingEnds once the training was requested to end.
        """
        self._raise_if_stopped()
        if validation and not self._task.has_validation:
            raise ValueError("a validation was requested, and the trainer has no validation_config")
        is_async = checkpoint_upload_mode == CheckpointUploadMode.ASYNC
        deletes = delete_local_checkpoint_after_upload
        if deletes is None:
            deletes = checkpoint_upload_mode.default_delete_local_checkpoint_after_upload()
        with self._counting:
            self._number += 1
            number, name = self._number, checkpoint_dir_name or ""
            source = None
            if checkpoint is not None:
                source = FolderSource(
                    checkpoint,
                    self._places,
                    upload=checkpoint_upload_fn,
                    name=name or f"checkpoint_{number:06d}",
                    is_moved=checkpoint_upload_mode == CheckpointUploadMode.NO_UPLOAD,
                    is_deleted=deletes,
                )
            settled = self._reporter.report(
                Report(number, metrics, source, name, _requested(validation)),
                in_background=is_async,
            )
        if is_async:
            # Ray's own barrier is taken here, by the caller; its thread waits for the commit.
            super().report(
                plain(metrics),
                checkpoint,
                checkpoint_upload_mode=CheckpointUploadMode.ASYNC,
                delete_local_checkpoint_after_upload=False,
                checkpoint_upload_fn=lambda *_: self._committed(settled),
            )
            return
        settled.result()
        super().report(
            plain(metrics),
            self._committed(settled) if checkpoint else None,
            checkpoint_upload_mode=CheckpointUploadMode.NO_UPLOAD,
        )
        self._raise_if_stopped()

    def get_checkpoint(self) -> Checkpoint | None:
        """The newest checkpoint that is committed, verified on this node.

        Raises DamagedFolderError if it is damaged.
        """
        with self._counting:
            newest = self._reporter.hold_newest(self._number)
        if newest is not None:
            folder, found = self._folder, self._folder.find(newest)
        elif self._task.origin is not None:
            folder, found = reported_at(self._task.origin)
        else:
            return None
        try:
            verified = verified_folder(folder, found, self._places.cache)
            return CommittedCheckpoint.from_directory(verified)
        except CheckpointError as error:
            own = str(found.name) if folder is self._folder else ""
            raise DamagedFolderError(own, str(error)) from error

    def get_all_reported_checkpoints(
        self,
        consistency_mode: CheckpointConsistencyMode = CheckpointConsistencyMode.VALIDATED,
        timeout_s: float | None = None,
    ) -> list[ReportedCheckpoint]:
        """The checkpoints of all attempts that are kept, oldest first."""
        begun = time.monotonic()
        self._reporter.wait_for_all(timeout_s)
        while True:
            found = self._folder.reported()
            is_late = timeout_s is not None and time.monotonic() - begun >= timeout_s
            if consistency_mode == CheckpointConsistencyMode.COMMITTED or is_late:
                break
            if not any(one.awaits_validation for one in found):
                break
            time.sleep(self._task.timing.validation_poll_s)
        return [
            ReportedCheckpoint(
                self._as_ray_has_it(str(one.name)),
                dict(one.reported_metrics),
                _status_of(one),
            )
            for one in found
        ]

    def end(self, returned: Any) -> None:
        """Commit the function's end, after all of its reports, with what it returned on rank 0.

        Raises what a report raised.
        """
        self._reporter.wait_for_all()
        self._raise_if_stopped()
        self._reporter.end(self._number + 1, returned)
        # The function has ended on all ranks: nobody reads it any more.
        shutil.rmtree(self._places.cache, ignore_errors=True)

    def close(self) -> None:
        """End the threads of the reports."""
        self._reporter.close()

    def _committed(self, settled: Future[Settled]) -> Checkpoint:
        """The checkpoint of a report with a folder, once it is committed."""
        name = settled.result().checkpoint
        assert name is not None, "this rank has reported a folder"
        return self._as_ray_has_it(name)

    def _as_ray_has_it(self, name: str) -> Checkpoint:
        place = f"{self._places.path}/{CHECKPOINTS}/{name}/{REPORTED_FOLDER}"
        return CommittedCheckpoint(place, filesystem=self._places.filesystem)

    def _raise_if_stopped(self) -> None:
        if self._reporter.stop is not None:
            raise TrainingEnds(self._reporter.stop)


def _status_of(checkpoint: Commit) -> ReportedCheckpointStatus:
    if checkpoint.validation:
        return ReportedCheckpointStatus.VALIDATED
    if checkpoint.validation is not None:
        return ReportedCheckpointStatus.VALIDATION_FAILED
    if checkpoint.awaits_validation:
        return ReportedCheckpointStatus.PENDING_VALIDATION
    return ReportedCheckpointStatus.COMMITTED


def _requested(validation: Any) -> dict[str, Any] | None:
    """The validation that a report asks for, as its manifest has it."""
    if not validation:
        return None
    if validation is True:
        return {"fn_kwargs": None, "timeout_s": None}
    return {"fn_kwargs": plain(validation.fn_kwargs), "timeout_s": validation.timeout_s}


class EndWithDriver(ControllerCallback):
    """Ends Ray's controller, and its workers with it, when the driver says so or is gone."""

    def __init__(self, task: FunctionTask) -> None:
        self._timing = task.timing
        self._own = Membership(task.host, task.port, task.group, rank=0, world_size=1)

    def after_controller_start(self, train_run_context: Any) -> None:
        """Wait for the driver in the background."""
        threading.Thread(target=self._wait, name="end-with-driver", daemon=True).start()

    def _wait(self) -> None:
        try:
            ReportChannel(self._own, self._timing).wait_for(ABORT)
        finally:
            os._exit(1)


class PlaceWorkers(ControllerCallback):
    """Has Ray's controller start the workers in places that are reserved already.

    By itself it reserves places of its own, for which a trial of a search would wait for ever: what
    there is, the trial has. The places are not given back at the end.
    """

    def __init__(self, placement_group: str) -> None:
        self._placement_group = placement_group

    def after_controller_start(self, train_run_context: Any) -> None:
        """From here on, in the controller's own process."""
        key = ray.PlacementGroupID(bytes.fromhex(self._placement_group))
        handle = _LentPlaces(PlacementGroup(key))
        WorkerGroup._create_placement_group = (  # type: ignore[method-assign]  # noqa: SLF001
            lambda *_: handle
        )


class _LentPlaces(DefaultPlacementGroupHandle):
    def shutdown(self) -> None:
        """Keep them: who has reserved them gives them back."""


def keep_lent_places(trainer: Any) -> None:
    """Have a trainer remove no places that were lent to it, however it ends."""
    made = trainer._create_default_callbacks  # noqa: SLF001

    def without_cleaner() -> list[Any]:
        return [one for one in made() if not isinstance(one, PlacementGroupCleanerCallback)]

    trainer._create_default_callbacks = without_cleaner  # noqa: SLF001


class PrepareProcesses(WorkerGroupCallback):
    """Prepares the workers' processes, before the trainer's backend connects them.

    Gloo connects them by the network in which they reach the driver. SIGTERM does not end one:
    the driver does, after the report under way.
    """

    def __init__(self, task: FunctionTask) -> None:
        self._host = task.host

    def before_init_train_context(self, workers: list[Any]) -> dict[str, list[Any]]:
        """Prepare each worker in its main thread, which alone may say what a signal does."""
        ray.get([worker.execute_async(_prepare_process, self._host) for worker in workers])
        return {}


def _prepare_process(host: str) -> None:
    choose_interfaces(host)
    note_sigterm(ends_process=False)
