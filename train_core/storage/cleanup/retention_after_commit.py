"""Retention while a run is driven: after each commit, and when its training ends."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from contextlib import suppress
from datetime import UTC, datetime

from train_core.config import TrainConfig
from train_core.errors import EvertrainError, FencedError
from train_core.storage.cleanup.delete_checkpoint import delete_unless_pinned
from train_core.storage.cleanup.retention_of_run import verdicts
from train_core.storage.records.names import JOURNAL
from train_core.storage.run_folder import Commit
from train_core.storage.run_writer import RunWriter

_log = logging.getLogger(__name__)


def delete_superseded(
    writer: RunWriter,
    config: TrainConfig,
    kept: Collection[str] = (),
    is_hurried: Callable[[], bool] = lambda: False,
) -> None:
    """Apply the retention rules, but to those `kept`, which are checkpoints' names.

    A failure leaves a checkpoint more, never one less. Once `is_hurried`, nothing more is deleted.

    Nobody resumes from what is deleted here, as there is a newer commit. The checkpoint that this
    attempt began from has no privilege: an interrupted run keeps the same checkpoints as an
    undisturbed one. The best checkpoint of a run that ended and was extended stays, as its report
    names it.
    """
    if is_hurried():
        return
    folder = writer.folder
    try:
        checkpoints = folder.checkpoints()
        found = verdicts(folder, checkpoints, config, now=datetime.now(UTC))
        gone = {
            verdict.candidate.name
            for verdict in found
            if not (verdict.is_kept or verdict.candidate.name in kept or is_hurried())
            and delete_unless_pinned(writer, verdict.candidate.name)
        }
        if not is_hurried():
            _delete_merged_segments(writer, checkpoints, gone)
    except FencedError:
        raise
    except (OSError, EvertrainError) as error:
        _log.warning("a superseded checkpoint could not be deleted: %s", error)


def _delete_merged_segments(
    writer: RunWriter, checkpoints: Collection[Commit], gone: Collection[str]
) -> None:
    """Delete the segments that only deleted checkpoints list: they are in larger ones now.

    Those of a checkpoint that is quarantined stay. Raises CheckpointError, and deletes none, if
    one cannot be read.
    """
    if not gone:
        return
    folder = writer.folder
    listed: dict[bool, set[str]] = {True: set(), False: set()}
    for checkpoint in checkpoints:
        listed[str(checkpoint.name) in gone] |= {s.name for s in checkpoint.manifest.journal}
    for text in folder.quarantined():
        with suppress(FileNotFoundError):
            listed[False] |= {s.name for s in folder.find(text).manifest.journal}
    writer.check_lease()
    # IMPORTANT: the newest first. A reader that goes by an older manifest meanwhile, as the
    # mirror may, finds a beginning without a gap, and not what comes after one.
    for name in sorted(listed[True] - listed[False], reverse=True):
        folder.store.delete(f"{JOURNAL}/{name}")
