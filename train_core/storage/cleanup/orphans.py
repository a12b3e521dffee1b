"""Orphans: what attempts that are over left behind and what belongs to no commit.

A checkpoint's folder without a manifest was never committed, or is half deleted; a journal segment
that no manifest lists was written for a commit that did not follow. Both are orphans once their
attempt is over. An evaluation or a batch inference without a manifest is one once no process has
its checkpoint pinned. A process that is killed while it uploads to S3 also leaves parts, which are
orphans by the same rules; no listing of objects shows them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from train_core.errors import CheckpointError, ConfigError, StorageError
from train_core.storage.committed import scored_by
from train_core.storage.coordination import lease, pins
from train_core.storage.coordination.fence_list import read_fence_list
from train_core.storage.objects.store import Store
from train_core.storage.objects.unfinished_uploads import Upload
from train_core.storage.records.manifest import CheckpointManifest
from train_core.storage.records.names import (
    CHECKPOINTS,
    EVALUATIONS,
    JOURNAL,
    MANIFEST_JSON,
    PREDICTIONS,
    QUARANTINED_JSON,
    CheckpointName,
    SegmentName,
    has_manifest,
)
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Orphan:
    """Something that belongs to no commit, by its key in the run folder."""

    key: str
    why: str
    is_late: bool = False
    """Whether it has a manifest, which came too late to count."""
    upload: Upload | None = None
    """The unfinished upload that it is, of the object at `key`; None: it is stored."""


def collect_orphans(writer: RunWriter) -> list[Orphan]:
    """Delete what attempts before the writer's left; gives what was deleted.

    A late commit stays, as somebody may have put it there: `evertrain prune` shows and deletes it.
    Raises FencedError if a newer attempt has the run.
    """
    folder = writer.folder
    found = find_orphans(folder, writer.attempt, with_late=False)
    delete_orphans(writer, found)
    folder.store.sweep()
    pins.sweep(folder.store)
    return found


def find_orphans(
    folder: RunFolder, attempt: int, *, gone: Collection[str] = (), with_late: bool = True
) -> list[Orphan]:
    """The orphans of attempts before `attempt` that are over.

    `gone` are checkpoints that are about to be deleted. A quarantined checkpoint is no orphan, nor
    is a segment that it lists.
    """
    newest = lease.newest_attempt(folder.store)
    is_over = cache(lambda number: number < attempt and lease.is_over(folder.store, number, newest))
    found = folder.scan()
    orphans = [
        Orphan(f"{CHECKPOINTS}/{name}", "never committed, or half deleted")
        for name in found.uncommitted
        if is_over(name.attempt)
    ]
    late = [name for name in found.late if is_over(name.attempt)] if with_late else []
    if late:
        why = (
            f"committed when attempt {read_fence_list(folder.store).attempt} had the run already: "
        )
        why += "it does not count"
        orphans += [Orphan(f"{CHECKPOINTS}/{name}", why, is_late=True) for name in late]
    uploads = _uploads(folder.store)
    results = list(_unfinished_results(folder, uploads))
    results += _uploads_of_attempts(uploads, is_over)
    if found.damaged or found.newer:
        # A manifest that cannot be read may list any segment, so all of them stay.
        return [*orphans, *results]
    others = {*found.quarantined, *found.late} - set(late)
    try:
        covered = _segments(one.manifest for one in found.good if str(one.name) not in gone)
        covered |= _segments(_manifests(folder, others))
    except (CheckpointError, ConfigError):
        return [*orphans, *results]
    return [*orphans, *results, *_uncovered(folder, covered, is_over)]


def delete_uncommitted_checkpoints(writer: RunWriter) -> None:
    """Delete the checkpoints that attempts before the writer's did not commit, while it trains.

    Segments of the journal stay: the writer's ranks commit meanwhile, and what a commit covers
    cannot be told from one look. Raises FencedError if a newer attempt has the run.
    """
    store = writer.folder.store
    newest = lease.newest_attempt(store)
    is_over = cache(lambda number: number < writer.attempt and lease.is_over(store, number, newest))
    found = [
        f"{CHECKPOINTS}/{text}"
        for text, below in store.in_folders(CHECKPOINTS).items()
        if (name := CheckpointName.parse(text))
        and is_over(name.attempt)
        and not {MANIFEST_JSON, QUARANTINED_JSON} & set(below)
    ]
    # IMPORTANT: after the look. No attempt before the writer's can commit one of them any more.
    writer.check_lease()
    for key in found:
        store.delete(key)
        _log.info("deleted %s of run %r: never committed", key, writer.folder.name)


def delete_unfinished_results(folder: RunFolder) -> None:
    """Delete evaluations and predictions without a manifest that no process works on.

    Any process may do so, without the lease.
    """
    for orphan in _unfinished_results(folder, _uploads(folder.store)):
        _delete(folder.store, orphan)


def abort_uploads(folder: RunFolder) -> None:
    """Abort all unfinished uploads, of a run that is deleted."""
    for upload in _uploads(folder.store):
        folder.store.abort(upload)


def delete_orphans(writer: RunWriter, orphans: Collection[Orphan]) -> None:
    """Delete the orphans; what has a manifest loses it first.

    Raises FencedError if a newer attempt has the run.
    """
    writer.check_lease()
    for orphan in orphans:
        if orphan.is_late:
            # It is committed. No attempt can count the others, so that one check is enough.
            writer.check_lease()
        _delete(writer.folder.store, orphan)


def _delete(store: Store, orphan: Orphan) -> None:
    if orphan.upload:
        try:
            store.abort(orphan.upload)
        except StorageError as error:
            _log.warning("parts of an unfinished upload could not be deleted: %s", error)
        return
    if orphan.is_late:
        store.delete(f"{orphan.key}/{MANIFEST_JSON}")
    store.delete(orphan.key)


def _uploads(store: Store) -> list[Upload]:
    try:
        return store.unfinished_uploads()
    except (StorageError, FileNotFoundError) as error:
        # A right of its own on S3, and not every server can: all else is collected all the same.
        _log.warning("parts of unfinished uploads could not be deleted: %s", error)
        return []


def _uploads_of_attempts(
    uploads: Iterable[Upload], is_over: Callable[[int], bool]
) -> Iterator[Orphan]:
    """Those of checkpoints' files and of segments: also of one that was committed since."""
    for upload in uploads:
        above, _, below = upload.key.partition("/")
        name: CheckpointName | SegmentName | None = None
        if above == CHECKPOINTS:
            name = CheckpointName.parse(below.partition("/")[0])
        elif above == JOURNAL:
            name = SegmentName.parse(below)
        if name and is_over(name.attempt):
            yield Orphan(upload.key, "an upload that was never finished", upload=upload)


def _unfinished_results(folder: RunFolder, uploads: Collection[Upload]) -> Iterator[Orphan]:
    store = folder.store
    uncommitted = [
        f"{above}/{name}"
        for above in (PREDICTIONS, *(f"{EVALUATIONS}/{name}" for name in store.names(EVALUATIONS)))
        for name, below in store.in_folders(above).items()
        if not has_manifest(f"{above}/{name}", below)
    ]
    uploads_of = {upload: scored_by(upload.key) for upload in uploads}
    # IMPORTANT: in this order. A process that works on one pinned its checkpoint before there was
    # anything to list, and commits it before the pin is taken away.
    pinned = {
        found.checkpoint
        for found in (pins.valid_pins(store) if uncommitted or any(uploads_of.values()) else ())
        if not (found.pin and found.pin.is_lasting)
    }

    def is_nobodys(checkpoint: str) -> bool:
        return CheckpointName.parse(checkpoint) is not None and checkpoint not in pinned

    for key in uncommitted:
        # It may have been committed after it was listed.
        if is_nobodys(scored_by(key)) and not has_manifest(key, store.names(key)):
            yield Orphan(key, "never committed, and nobody works on it")
    for upload, checkpoint in uploads_of.items():
        if is_nobodys(checkpoint):
            why = "an upload that was never finished, and nobody works on it"
            yield Orphan(upload.key, why, upload=upload)


def _uncovered(
    folder: RunFolder, covered: Collection[str], is_over: Callable[[int], bool]
) -> Iterator[Orphan]:
    for text in folder.store.names(JOURNAL):
        segment = SegmentName.parse(text)
        if segment and text not in covered and is_over(segment.attempt):
            yield Orphan(f"{JOURNAL}/{text}", "no commit covers it")


def _manifests(
    folder: RunFolder, names: Collection[CheckpointName]
) -> Iterator[CheckpointManifest]:
    for name in names:
        with suppress(FileNotFoundError):
            yield folder.checkpoint(name).manifest


def _segments(manifests: Iterable[CheckpointManifest]) -> set[str]:
    return {entry.name for manifest in manifests for entry in manifest.journal}


def delete_orphans_of_the_dead(writer: RunWriter) -> None:
    """Delete what earlier attempts left without a commit; a failure leaves it to the next."""
    try:
        for orphan in collect_orphans(writer):
            _log.info("deleted %s of run %r: %s", orphan.key, writer.folder.name, orphan.why)
    except (OSError, CheckpointError) as error:
        _log.warning("what an earlier attempt left could not be deleted: %s", error)
