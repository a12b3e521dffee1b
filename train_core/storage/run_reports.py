"""What a run's report.json says."""

from __future__ import annotations

from typing import Any, TypeVar

from train_core.errors import CheckpointError
from train_core.results import Report
from train_core.storage.committed import with_files
from train_core.storage.records.documents import read_document
from train_core.storage.records.names import REPORT_JSON
from train_core.storage.run_folder import RunFolder

_T = TypeVar("_T")


def read_report(folder: RunFolder) -> Report | None:
    """The whole report; None while the run has none.

    Raises CheckpointError if it is damaged, and ConfigError if a newer evertrain wrote it.
    """
    try:
        return read_document(folder.store, Report, REPORT_JSON, "the report of a run")[0]
    except FileNotFoundError:
        return None
    except CheckpointError as error:
        raise CheckpointError(
            f"{error}. Delete it: `evertrain runs resume {folder.name}` writes it anew"
        ) from error


def reported_best(folder: RunFolder) -> str | None:
    """The name of the best checkpoint; None while the run has no report, or has no checkpoint.

    Raises CheckpointError if the report is damaged, or does not name one.
    """
    report = folder.report()
    if report is None:
        return None
    if report.get("best", "") is None and not with_files(folder.checkpoints()):
        return None
    return reported(report, folder, str, "best", "name")


def reported(report: dict[str, Any], folder: RunFolder, kind: type[_T], *path: str) -> _T:
    """The value at `path`, such as "train", "step", of the folder's report.

    Raises CheckpointError if there is no value of that kind.
    """
    found: Any = report
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    # `true` is an int to Python.
    if not isinstance(found, kind) or (isinstance(found, bool) and kind is not bool):
        raise CheckpointError(
            f"{folder.store.uri(REPORT_JSON)} does not say {'.'.join(path)}: mend it or delete it"
        )
    return found
