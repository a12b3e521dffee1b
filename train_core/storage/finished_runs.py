"""The finished runs of a workload in a storage, newest first."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from train_core.errors import EvertrainError
from train_core.storage.names import is_run_name
from train_core.storage.run_folder import RunFolder, RunRecord
from train_core.storage.store import Store

_AT_ONCE = 16
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


def finished_runs(storage: str, workload: str, *, before: str = "") -> Iterator[FinishedRun]:
    """The runs of `workload` in `storage` that have a report, newest created first.

    With `before`, a time as run.json has it, those only that were created before it. Dry runs are
    left out, and so is a run that cannot be read, which is logged.
    """
    names = Store(storage).names()
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = [one for one in pool.map(partial(_recorded, storage), names) if one]
    for folder, record in sorted(found, key=lambda one: one[1].created_at, reverse=True):
        is_other = record.config.workload != workload or record.pipeline.get("dry_run")
        if is_other or (before and record.created_at >= before):
            continue
        try:
            report = folder.report()
        except EvertrainError as error:
            _leave_out(folder.name, error)
            continue
        if report is not None:
            yield FinishedRun(folder, record, report)


def _recorded(storage: str, name: str) -> tuple[RunFolder, RunRecord] | None:
    """The run's folder and record; None for what is no run, or cannot be read."""
    if not is_run_name(name):
        return None
    folder = RunFolder(storage, name)
    try:
        return (folder, folder.record()) if folder.exists() else None
    except FileNotFoundError:
        # It was deleted just now.
        return None
    except EvertrainError as error:
        _leave_out(name, error)
        return None


def _leave_out(name: str, error: EvertrainError) -> None:
    _log.warning("run %r cannot be read, so it is no run to compare with: %s", name, error)
