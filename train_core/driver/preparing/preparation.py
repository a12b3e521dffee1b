"""Before a training: the request is checked, the run created and taken, workers started."""

from __future__ import annotations

import logging
import re
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from train_core.champion.of_run import newest_gate, question_after_training
from train_core.cluster.resources import with_gpus
from train_core.config import TrainConfig, WorkloadTraining
from train_core.driver.held_run import HeldRun
from train_core.driver.preparing.preflight import (
    Checked,
    effective,
    new_record,
    with_surroundings,
)
from train_core.driver.preparing.rehearsing import rehearsed
from train_core.driver.preparing.unchanged import run_that_has_it
from train_core.policy.end_status import EndStatus
from train_core.rank.data.recorded_workload import check_continuation, with_defaults
from train_core.requests import DriverRequest, Prepared
from train_core.storage.records.amendments import Amendment
from train_core.storage.records.data_files import FileList
from train_core.storage.records.run_record import RunRecord
from train_core.storage.run_checks import check_flow_run, check_leftovers
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import create_run
from train_core.timing import Timing
from train_core.tracking.delivery.mirror import Mirror

if TYPE_CHECKING:
    from train_core.driver.ray_session import RaySession
    from train_core.driver.runner import Runner

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class PreparedRun:
    """A request that was checked, and what was begun for it."""

    prepared: Prepared
    config: TrainConfig
    """With what was decided."""
    held: HeldRun | None = None
    """The run; None if there was no need to create it: `prepared` says why."""
    mirror: Mirror | None = None
    """The mirror to MLflow; None: MLflow does not show the run."""


def prepare_run(
    request: DriverRequest,
    folder: RunFolder,
    runner: Runner,
    ray: RaySession,
    job: str,
    timing: Timing,
) -> PreparedRun:
    """Check the request, create the run if it is new, take it, and begin what it needs.

    Raises ConfigError for what is wrong with the request, before anything is written that stays;
    RunBusyError if another driver has the run.
    """
    config = effective(request)
    with ExitStack() as begun:
        mirror = _connected_mirror(request, folder)
        if mirror is not None:
            begun.callback(mirror.close, None)
        asked = request.model_copy(update={"config": config})
        checked = runner.check(folder, asked, ray)
        config, prepared = checked.config, checked.prepared
        if prepared.resumed:
            _warn_of_drawn_splits(folder.record())
        else:
            _warn_of_order(config)
        record = None if prepared.resumed else _record(request, config, checked)
        if record and (since := _run_that_has_it(request, record, checked.files)):
            of_since = RunFolder(request.storage, since)
            question = question_after_training(of_since, newest_gate(of_since))
            waits = question.version.version if question and not question.is_answered else None
            found = {"unchanged_since": since, "waiting_version": waits}
            return PreparedRun(prepared.model_copy(update=found), config)
        if record is not None and config.trainable.is_rehearsed:
            record = rehearsed(
                request.storage, record, config, checked, within_s=timing.rehearsal_s
            )
        # Only the cluster itself knows its resources. Nothing has been written yet.
        ray.join(config, nodes_wait_s=timing.nodes_wait_s if prepared.resumed else 0)
        config = with_gpus(config)
        if mirror is not None:
            mirror.check()
        if request.dry_run and checked.plan:
            planned = prepared.model_copy(update={"plan": checked.plan(config)})
            return PreparedRun(planned, config)
        if record is not None:
            _create_run(folder, with_surroundings(record, config), checked)
        held = HeldRun.take(folder, job, timing)
        begun.callback(held.release, EndStatus.FAILED)
        _amend(request, folder, held, config)
        ray.start_workers_early(config)
        if mirror is not None:
            mirror.start(config)
        # From here on the stages of the run close them.
        begun.pop_all()
    prepared = prepared.model_copy(update={"job_url": request.job_url})
    return PreparedRun(prepared, config, held, mirror)


def _warn_of_drawn_splits(record: RunRecord) -> None:
    """Warn if the run's splits may be drawn, and were drawn by the rule of an earlier version."""
    unknown = [name for name, found in record.datasets.items() if not found.get("digest")]
    is_drawn = isinstance(record.config.trainable, WorkloadTraining)
    if record.step_rules == 1 and unknown and is_drawn:
        _log.warning(
            "run %r began before splits were drawn alike in all processes: if `dataset` draws "
            "(random_split without a generator), the %s of now has other samples than it began "
            "with. A `digest()` of the dataset tells",
            record.name,
            " and the ".join(f"{name} split" for name in unknown),
        )


def _warn_of_order(config: TrainConfig) -> None:
    """Warn if the best checkpoint would be the one with the highest loss."""
    is_loss = re.search("(?<![a-z])(loss|error)(?![a-z])", config.monitor.lower())
    if is_loss and config.order == "max":
        _log.warning(
            "the best checkpoint is the one with the highest %s: if lower is better, give "
            "monitor_order=min (--monitor-order min)",
            config.monitor,
        )


def _connected_mirror(request: DriverRequest, folder: RunFolder) -> Mirror | None:
    """A mirror that asks the server in the background."""
    if not request.tracking_uri:
        return None
    mirror = Mirror(folder, request.tracking_uri, request.experiment, job_url=request.job_url)
    mirror.connect()
    return mirror


def _record(request: DriverRequest, config: TrainConfig, checked: Checked) -> RunRecord:
    return new_record(
        request, config, checked.datasets, checked.origin, checked.files, checked.fitted
    )


def _run_that_has_it(request: DriverRequest, record: RunRecord, files: FileList | None) -> str:
    """The finished run with the same inputs, if such a request is to be skipped."""
    if not request.skip_unchanged or request.dry_run:
        return ""
    return run_that_has_it(record, files, request)


def _create_run(folder: RunFolder, record: RunRecord, checked: Checked) -> None:
    check_leftovers(folder)
    # Of two that begin the run at once, one creates it and one gets the lease.
    with suppress(FileExistsError):
        create_run(folder, record, checked.files, checked.fitted)


def _amend(request: DriverRequest, folder: RunFolder, held: HeldRun, config: TrainConfig) -> None:
    """Record the configuration of this attempt."""
    check_flow_run(folder, request.flow_run)
    check_continuation(folder, config)
    recorded = with_defaults(config).recorded()
    held.writer.amend(Amendment(config=recorded, pipeline=request.recorded().model_dump()))
