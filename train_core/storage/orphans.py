"""Orphans: what attempts that are over left behind and no commit counts.

A checkpoint's folder without a manifest was never committed, or is half deleted; a journal segment
that no manifest lists was written for a commit that did not come. Once the attempt is over,
nothing more comes of either. Nor of an evaluation or an inference without a manifest, once no
process has its checkpoint pinned.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from train_core.errors import CheckpointError
from train_core.storage import lease, pins
from train_core.storage.manifest import CheckpointManifest
from train_core.storage.names import (
    CHECKPOINTS,
    EVALUATIONS,
    JOURNAL,
    MANIFEST_JSON,
    PREDICTIONS,
    QUARANTINED_JSON,
    CheckpointName,
    SegmentName,
)
from train_core.storage.run_folder import RunFolder


@dataclass(frozen=True)
class Orphan:
    """Something that no commit counts, by its key in the run folder."""

    key: str
    why: str
    is_late: bool = False
    """Whether it has a manifest, which came too late to count."""


def collect_orphans(folder: RunFolder, attempt: int) -> list[Orphan]:
    """Delete what attempts before `attempt`, which has the run, left; gives what was deleted.

    A late commit stays, as somebody may have put it there: `evertrain prune` shows and deletes it.
    Raises FencedError if a newer attempt has the run.
    """
    found = find_orphans(folder, attempt, with_late=False)
    delete_orphans(folder, found, attempt)
    folder.store.sweep()
    pins.sweep(folder.store)
    return found


def find_orphans(
    folder: RunFolder, attempt: int, *, gone: Collection[str] = (), with_late: bool = True
) -> list[Orphan]:
    """The orphans of attempts before `attempt` that are over; `gone` checkpoints count no more.

    Quarantined checkpoints are none, nor is a segment that one of them lists.
    """
    is_over = cache(lambda number: number < attempt and lease.is_over(folder.store, number))
    counted = folder.checkpoints()
    parsed = (CheckpointName.parse(text) for text in folder.store.names(CHECKPOINTS))
    others = {name for name in parsed if name} - {one.name for one in counted}
    found = {name: _orphan(folder, name) for name in sorted(others) if is_over(name.attempt)}
    orphans = {n: one for n, one in found.items() if one and (with_late or not one.is_late)}
    results = list(_unfinished_results(folder))
    try:
        covered = _segments(one.manifest for one in counted if str(one.name) not in gone)
        covered |= _segments(_manifests(folder, others - orphans.keys()))
    except CheckpointError:
        # A manifest that cannot be read may list any segment, so all of them stay.
        return [*orphans.values(), *results]
    return [*orphans.values(), *results, *_uncovered(folder, covered, is_over)]


def delete_unfinished_results(folder: RunFolder) -> None:
    """Delete evaluations and predictions without a manifest that nobody works on: by anybody."""
    for orphan in _unfinished_results(folder):
        folder.store.delete(orphan.key)


def delete_orphans(folder: RunFolder, orphans: Collection[Orphan], attempt: int) -> None:
    """Delete the orphans on behalf of `attempt`; what has a manifest loses it first.

    Raises FencedError if a newer attempt has the run.
    """
    for orphan in orphans:
        lease.check(folder.store, attempt)
        if orphan.is_late:
            folder.store.delete(f"{orphan.key}/{MANIFEST_JSON}")
        folder.store.delete(orphan.key)


def _orphan(folder: RunFolder, name: CheckpointName) -> Orphan | None:
    store, key = folder.store, f"{CHECKPOINTS}/{name}"
    if store.exists(f"{key}/{QUARANTINED_JSON}"):
        return None
    if not store.exists(f"{key}/{MANIFEST_JSON}"):
        return Orphan(key, "never committed, or half deleted")
    sealed_by, sealed = lease.read_seal(store)
    if name.attempt < sealed_by and str(name) not in sealed:
        why = f"committed when attempt {sealed_by} had the run already: it does not count"
        return Orphan(key, why, is_late=True)
    return None


def _unfinished_results(folder: RunFolder) -> Iterator[Orphan]:
    store = folder.store
    # Names of predictions end with what tells two of one checkpoint apart.
    of = {f"{PREDICTIONS}/{name}": name.rpartition("-")[0] for name in store.names(PREDICTIONS)}
    of |= {
        f"{EVALUATIONS}/{checkpoint}/{name}": checkpoint
        for checkpoint in store.names(EVALUATIONS)
        for name in store.names(f"{EVALUATIONS}/{checkpoint}")
    }
    # IMPORTANT: in this order. Who works on one pinned its checkpoint before there was anything to
    # list, and commits it before the pin is taken away.
    pinned = {
        found.checkpoint
        for found in (pins.valid_pins(store) if of else ())
        if not (found.pin and found.pin.is_lasting)
    }
    for key, checkpoint in of.items():
        if CheckpointName.parse(checkpoint) is None or checkpoint in pinned:
            continue
        if not store.exists(f"{key}/{MANIFEST_JSON}"):
            yield Orphan(key, "never committed, and nobody works on it")


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
