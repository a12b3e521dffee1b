"""What was committed to a run, found by a listing and opened: checkpoints, and results of them.

Each folder is compared with its content: one that was copied or renamed is not what it is called.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from train_core.errors import CheckpointError, ConfigError
from train_core.policy.metric_names import VALIDATION, is_of
from train_core.storage.coordination.fence_list import Fence, read_fence_list
from train_core.storage.objects.store import Store
from train_core.storage.records.manifest import (
    CheckpointManifest,
    EvaluationManifest,
    PredictionsManifest,
    read_manifest,
)
from train_core.storage.records.names import (
    CHECKPOINTS,
    EVALUATIONS,
    MANIFEST_JSON,
    PREDICTIONS,
    QUARANTINED_JSON,
    CheckpointName,
    manifest_names,
    validation_key,
)

_AT_ONCE = 16
_SLOW_S = 0.002
"""For what answers within so many seconds, threads cost more than they save."""
_A = TypeVar("_A")
_B = TypeVar("_B")
R = TypeVar("R", EvaluationManifest, PredictionsManifest)
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Commit:
    """A committed checkpoint: its manifest, and the manifest's digest."""

    manifest: CheckpointManifest
    digest: str
    validation: dict[str, float | None] | None = None
    """What a validation function has measured; None: nothing yet, or there is none."""

    @property
    def step(self) -> int:
        """The optimizer steps that were done."""
        return self.manifest.step

    @property
    def attempt(self) -> int:
        """The attempt that took it."""
        return self.manifest.attempt

    @property
    def name(self) -> CheckpointName:
        """Its folder's name."""
        return CheckpointName(self.step, self.attempt)

    @property
    def key(self) -> str:
        """Its folder's key in the run folder."""
        return f"{CHECKPOINTS}/{self.name}"

    @property
    def size_bytes(self) -> int:
        """Of all its files, as committed."""
        return sum(file.size_bytes for file in self.manifest.files)

    @property
    def metrics(self) -> dict[str, float | None]:
        """The newest value of each; validation metrics only if they are of its very step."""
        committed = {
            name: value
            for name, value in self.manifest.metrics.items()
            if self.manifest.validated or not is_of(VALIDATION, name)
        }
        return committed | (self.validation or {})

    @property
    def reported_metrics(self) -> dict[str, Any]:
        """What the training function reported with it, as it did, and its validation measured.

        `metrics`, where only these are recorded.
        """
        reported = self.manifest.reported
        if reported is None or reported.metrics is None:
            return self.metrics
        return {**reported.metrics, **(self.validation or {})}

    @property
    def awaits_validation(self) -> bool:
        """Whether a validation function is to measure it, and has not yet."""
        reported = self.manifest.reported
        return bool(reported and reported.requested_validation) and self.validation is None


def with_files(checkpoints: Iterable[Commit]) -> list[Commit]:
    """Without the one that stands for a training function's end, and has nothing to read."""
    return [one for one in checkpoints if not one.manifest.is_function_end]


@dataclass(frozen=True)
class Scan:
    """What lies among a run's checkpoints; each folder is in one of the lists."""

    good: list[Commit] = field(default_factory=list)
    """Oldest first."""
    damaged: dict[CheckpointName, str] = field(default_factory=dict)
    """Those whose manifests cannot be read, or are another's, and why."""
    newer: dict[CheckpointName, str] = field(default_factory=dict)
    """Those that a newer evertrain committed, and what says so."""
    quarantined: list[CheckpointName] = field(default_factory=list)
    late: list[CheckpointName] = field(default_factory=list)
    """Those that a replaced attempt committed: they do not count."""
    uncommitted: list[CheckpointName] = field(default_factory=list)
    """Those without a manifest: never committed, or half deleted."""

    @property
    def newest(self) -> Commit | None:
        """The newest good one, also beside those that a newer evertrain committed."""
        return self.good[-1] if self.good else None

    def refuse_newer(self) -> None:
        """Raise ConfigError if a newer evertrain committed one: whatever changes a run does so."""
        for reason in self.newer.values():
            raise ConfigError(reason)


def scan(store: Store, only: CheckpointName | None = None, fence: Fence | None = None) -> Scan:
    """Find the checkpoints of a run, or `only` one, by a listing, and read their manifests.

    `fence` is the newest fence list, if it was read already. Raises CheckpointError if it cannot be
    read.
    """
    fence = fence or read_fence_list(store)
    found = Scan()
    committed = []
    for name, below in sorted(_folders(store).items()):
        if only not in (None, name):
            continue
        if QUARANTINED_JSON in below:
            found.quarantined.append(name)
        elif MANIFEST_JSON not in below:
            found.uncommitted.append(name)
        elif fence.excludes(name):
            found.late.append(name)
        else:
            committed.append(name)
    read = in_threads(lambda name: _opened(store, name), committed)
    for name, one in zip(committed, read, strict=True):
        match one:
            case Commit():
                found.good.append(one)
            case FileNotFoundError():
                # It was deleted just now.
                continue
            case ConfigError():
                found.newer[name] = str(one)
            case _:
                found.damaged[name] = str(one)
    return found


def quarantined_names(store: Store) -> list[CheckpointName]:
    """The checkpoints that have a mark."""
    return sorted(name for name, below in _folders(store).items() if QUARANTINED_JSON in below)


def open_checkpoint(store: Store, name: CheckpointName) -> Commit:
    """One checkpoint; every checkpoint that is read is opened here.

    Raises FileNotFoundError if it was never committed, and CheckpointError if its manifest cannot
    be read, or is another checkpoint's; ConfigError if a newer evertrain wrote it.
    """
    key = f"{CHECKPOINTS}/{name}"
    found = Commit(*read_manifest(store, CheckpointManifest, f"{key}/{MANIFEST_JSON}"))
    if found.name != name:
        # Its manifest and files are whole, so nothing else shows that the folder was copied.
        raise CheckpointError(
            f"{store.uri(key)} has the manifest of {found.name}: the folder was copied or "
            f"renamed. If there is no {found.name}, give it that name again and delete its "
            f"{QUARANTINED_JSON}; else delete the folder"
        )
    if found.awaits_validation:
        return replace(found, validation=_validation_of(store, found))
    return found


def open_result(store: Store, model: type[R], key: str) -> R:
    """The manifest of the result in the folder `key`. Raises as `open_checkpoint`."""
    found = _result_manifest(store, model, key)
    if found.checkpoint != scored_by(key):
        raise CheckpointError(
            f"{store.uri(key)} is a result of {found.checkpoint}: the folder was copied or renamed"
        )
    return found


def _result_manifest(store: Store, model: type[R], key: str) -> R:
    *names, earliest = manifest_names(key)
    for name in names:
        with suppress(FileNotFoundError):
            return read_manifest(store, model, f"{key}/{name}")[0]
    return read_manifest(store, model, f"{key}/{earliest}")[0]


def results(store: Store, above: str, model: type[R]) -> Iterator[tuple[str, R]]:
    """The committed results directly below the key `above`: each one's key and manifest."""
    for name in store.names(above):
        key = f"{above}/{name}"
        try:
            yield key, open_result(store, model, key)
        except FileNotFoundError:
            continue
        except CheckpointError as error:
            _log.warning("a damaged result is left out: %s", error)


def scored_by(key: str) -> str:
    """The checkpoint that the result with the object at `key` is of; empty: it is of no result."""
    above, _, below = key.partition("/")
    name = below.partition("/")[0]
    # Names of predictions end with what tells two of one checkpoint apart.
    return {PREDICTIONS: name.rpartition("-")[0], EVALUATIONS: name}.get(above, "")


def in_threads(call: Callable[[_A], _B], items: Sequence[_A]) -> list[_B]:
    """What `call`, which reads small objects, gives for each item; many at a time if that is slow.

    A disk of this machine answers sooner than threads take turns.
    """
    found = []
    for item in items:
        begun = time.monotonic()
        found.append(call(item))
        if time.monotonic() - begun > _SLOW_S:
            break
    with ThreadPoolExecutor(_AT_ONCE, "read") as threads:
        return [*found, *threads.map(call, items[len(found) :])]


def _folders(store: Store) -> dict[CheckpointName, set[str]]:
    listed = store.in_folders(CHECKPOINTS).items()
    parsed = ((CheckpointName.parse(text), names) for text, names in listed)
    return {name: names for name, names in parsed if name}


def _opened(
    store: Store, name: CheckpointName
) -> Commit | CheckpointError | ConfigError | FileNotFoundError:
    try:
        return open_checkpoint(store, name)
    except (CheckpointError, ConfigError, FileNotFoundError) as error:
        return error


def _validation_of(store: Store, checkpoint: Commit) -> dict[str, float | None] | None:
    try:
        return open_result(store, EvaluationManifest, validation_key(checkpoint.name)).metrics
    except FileNotFoundError:
        return None
    except CheckpointError as error:
        _log.warning("a damaged result is left out: %s", error)
        return {}
