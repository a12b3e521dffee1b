"""The runs of a storage: listed, and which of them have finished."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from train_core.config import TrainConfig
from train_core.errors import ConfigError, EvertrainError
from train_core.policy.end_status import EndStatus
from train_core.policy.stop_reasons import Reached, still_holds
from train_core.storage.committed import in_threads
from train_core.storage.objects.store import Store
from train_core.storage.records.names import RUN_JSON, is_run_name
from train_core.storage.records.run_record import RunRecord
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.run_reports import reported

_T = TypeVar("_T")
_MOST_NAMED = 10
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class FinishedRun:
    """A run that has a report."""

    folder: RunFolder
    record: RunRecord
    report: dict[str, Any]

    @property
    def name(self) -> str:
        """The run's name."""
        return self.folder.name


def finished_runs(storage: str, workload: str = "", *, before: str = "") -> Iterator[FinishedRun]:
    """The runs of `workload`, or of any, in `storage` that have a report, newest created first.

    With `before`, a time as run.json has it, those only that were created before it. Dry runs are
    left out, and so is a run that cannot be read, which is logged.
    """
    for folder, record in recorded_runs(storage):
        is_other = workload and record.config.workload != workload
        if is_other or record.requested.dry_run or (before and record.created_at >= before):
            continue
        try:
            report = folder.report()
        except EvertrainError as error:
            _leave_out(folder.name, error)
            continue
        if report is not None:
            yield FinishedRun(folder, record, report)


def newest_finished(storage: str, workload: str = "") -> FinishedRun:
    """The newest created of `finished_runs`. Raises ConfigError, which says what is there."""
    for found in finished_runs(storage, workload):
        return found
    runs = recorded_runs(storage)
    there = [f"{folder.name} (of {record.config.workload})" for folder, record in runs]
    more = f" and {len(there) - _MOST_NAMED} more" if len(there) > _MOST_NAMED else ""
    of = f"of {workload} " if workload else ""
    raise ConfigError(
        f"there is no finished run {of}in {storage}: one that has a report.json and is no dry run. "
        "Of runs that can be read there are "
        f"{', '.join(there[:_MOST_NAMED]) or 'none'}{more}"
    )


def recorded_runs(storage: str) -> list[tuple[RunFolder, RunRecord]]:
    """All runs in `storage`, finished or not, newest created first.

    A run that cannot be read is left out, which is logged.
    """
    found = read_runs(storage, lambda folder: (folder, folder.record()), _leave_out)
    return sorted(found, key=lambda one: one[1].created_at, reverse=True)


def read_runs(
    storage: str, read: Callable[[RunFolder], _T], on_fault: Callable[[str, Exception], _T | None]
) -> list[_T]:
    """What `read` gives for each run in `storage`, many at a time, in the order of their names.

    `read` begins with the run's record. For a run that it cannot read it is what `on_fault` gives
    for its name and the error; None leaves it out, as one that was deleted meanwhile is.
    """

    def read_one(name: str) -> _T | None:
        try:
            if not is_run_name(name) and not Store(storage).exists(f"{name}/{RUN_JSON}"):
                return None
            return read(RunFolder(storage, name))
        except FileNotFoundError:
            # It is no run, or was deleted just now.
            return None
        except (EvertrainError, OSError) as error:
            return on_fault(name, error)

    found = in_threads(read_one, Store(storage).names())
    return [one for one in found if one is not None]


def _leave_out(name: str, error: Exception) -> None:
    _log.warning("run %r cannot be read, and is left out: %s", name, error)


def is_run_finished(
    folder: RunFolder,
    report: dict[str, Any] | None,
    newest: Commit | None,
    record: RunRecord | None = None,
    end: str = "",
) -> bool:
    """Whether the run is over: its report is of its newest checkpoint, the training's last one.

    A run that was extended has the report of its first end. One of `fit` has none: it is over if
    its driver has given it free as FINISHED (`end`, the lease's). `record` is the run's, if it was
    read. Raises CheckpointError if the report, or what was asked of the run, cannot be read.
    """
    if newest is None:
        return False
    if report is None:
        is_by_itself = end == EndStatus.FINISHED
        return is_by_itself and is_training_finished(newest, folder.newest_request(record).config)
    is_reported = reported(report, folder, int, "train", "step") >= newest.step
    return is_reported and is_training_finished(newest, folder.newest_request(record).config)


def is_training_finished(newest: Commit | None, config: TrainConfig) -> bool:
    """Whether the newest checkpoint is the training's last, also by what is asked now."""
    if newest is None:
        return False
    manifest = newest.manifest
    reached = Reached(manifest.step, manifest.epoch, manifest.elapsed_s)
    return still_holds(manifest.stopped_by, reached, config)
