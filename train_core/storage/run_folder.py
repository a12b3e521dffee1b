"""The run folder: the source of truth of a run, on any storage.

<storage>/<run>/
    run.json            what was asked; created once
    data/               the files of the workload's data (see `data_files`)
    asked/              what was asked of it later (see `amendments`)
    lease/              the attempts, and which process drives the run (see `lease`)
    checkpoints/step-00001200-a0007/    files, then manifest.json: the commit
    journal/            every metric of every step, in segments
    pins/<checkpoint>/  readers of a checkpoint, which therefore stays (see `pins`)
    evaluations/  predictions/          results with manifests of their own
    report.json         the outcome
    live.json           where the training is right now: a hint, not truth
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from copy import copy
from dataclasses import dataclass, replace
from typing import Any, Self

from train_core.errors import CheckpointError, ConfigError
from train_core.policy.metric_names import VALIDATION, is_of
from train_core.results import CheckpointSummary
from train_core.storage.coordination.fence_list import read_fence_list
from train_core.storage.objects.retry_policy import RetryPolicy
from train_core.storage.objects.store import Store
from train_core.storage.records.amendments import Amendment, newest_amendment
from train_core.storage.records.data_files import FileList, read_file_list
from train_core.storage.records.documents import read_document, read_object
from train_core.storage.records.manifest import (
    CheckpointManifest,
    EvaluationManifest,
    M,
    is_committed,
    read_manifest,
)
from train_core.storage.records.names import (
    CHECKPOINTS,
    LIVE_JSON,
    MANIFEST_JSON,
    QUARANTINED_JSON,
    REPORT_JSON,
    RUN_JSON,
    CheckpointName,
    check_run_name,
    validation_key,
)
from train_core.storage.records.quarantine import is_quarantined, quarantine_reason
from train_core.storage.records.run_record import RunRecord

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
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
    def metrics(self) -> dict[str, float | None]:
        """The newest value of each; validation metrics only if they are of its very step."""
        committed = {
            name: value
            for name, value in self.manifest.metrics.items()
            if self.manifest.validated or not is_of(VALIDATION, name)
        }
        return committed | (self.validation or {})

    @property
    def awaits_validation(self) -> bool:
        """Whether a validation function is to measure it, and has not yet."""
        reported = self.manifest.reported
        return bool(reported and reported.requested_validation) and self.validation is None


class RunFolder:
    """One run's folder below a storage URL, to be read; `RunWriter` changes it."""

    def __init__(self, storage: str, name: str) -> None:
        self.name = check_run_name(name)
        self.storage = storage
        self.store = Store(storage).child(name)

    @classmethod
    def at(cls, url: str) -> RunFolder:
        """The run folder at its own address."""
        storage, _, name = url.rstrip("/").rpartition("/")
        if not storage or storage.endswith("/"):
            raise ConfigError(f"{url!r} is not the address of a run: <storage>/<run>")
        return cls(storage, name)

    def with_retries(self, retry_policy: RetryPolicy) -> Self:
        """The same folder, whose storage is waited for by that retry policy."""
        folder = copy(self)
        folder.store = self.store.with_retries(retry_policy)
        return folder

    @property
    def url(self) -> str:
        """The folder's address."""
        return self.store.url

    def exists(self) -> bool:
        """Whether the run was created."""
        return self.store.exists(RUN_JSON)

    def record(self) -> RunRecord:
        """What was asked.

        Raises FileNotFoundError if there is no such run, CheckpointError if run.json is damaged.
        """
        return read_document(self.store, RunRecord, RUN_JSON, "the record of a run")[0]

    def files_of(self, record: RunRecord) -> FileList | None:
        """The data files of the run; None if its workload names none, or none were recorded.

        Raises CheckpointError if the list is damaged.
        """
        return read_file_list(self.store, record.files) if record.files else None

    def newest_request(self) -> Amendment:
        """What was requested last: the newest amendment, or else `record`. Raises as it does."""
        if found := newest_amendment(self.store):
            return found
        record = self.record()
        return Amendment(config=record.config, pipeline=record.pipeline)

    def checkpoints(self) -> list[Checkpoint]:
        """The committed checkpoints, oldest first; damaged and quarantined ones are left out."""
        return self.scan()[0]

    def newest(self) -> Checkpoint | None:
        """The newest of `checkpoints`; None if there is none."""
        return next(reversed(self.checkpoints()), None)

    def damaged(self) -> dict[str, str]:
        """What is wrong with manifests that cannot be read, by checkpoint; quarantined ones not."""
        return {str(name): reason for name, reason in self.scan()[1].items()}

    def scan(self) -> tuple[list[Checkpoint], dict[CheckpointName, str]]:
        """The committed checkpoints, oldest first, and what is wrong with damaged manifests."""
        fenced_by, listed = read_fence_list(self.store)
        found, damaged = [], {}
        for text in self.store.names(CHECKPOINTS):
            name = CheckpointName.parse(text)
            if name is None or (name.attempt < fenced_by and text not in listed):
                continue
            if is_quarantined(self.store, name):
                continue
            try:
                found.append(self.checkpoint(name))
            except FileNotFoundError:
                continue
            except CheckpointError as error:
                damaged[name] = str(error)
        return sorted(found, key=lambda c: c.name), damaged

    def newest_reported(self) -> Checkpoint | None:
        """The newest folder that a training function reported; None if there is none."""
        found = (one for one in reversed(self.checkpoints()) if one.manifest.reported)
        return next(found, None)

    def exists_checkpoint(self, name: CheckpointName) -> bool:
        """Whether the checkpoint was committed and is not deleted."""
        return is_committed(self.store, name)

    def checkpoint(self, name: CheckpointName) -> Checkpoint:
        """One checkpoint; every checkpoint that is read is opened here.

        Raises FileNotFoundError if it was never committed, and CheckpointError if its manifest
        cannot be read, or is another checkpoint's.
        """
        key = f"{CHECKPOINTS}/{name}"
        found = Checkpoint(*read_manifest(self.store, CheckpointManifest, f"{key}/{MANIFEST_JSON}"))
        if found.name != name:
            # Its manifest and files are whole, so nothing else shows that the folder was copied.
            raise CheckpointError(
                f"{self.store.uri(key)} has the manifest of {found.name}: the folder was copied or "
                f"renamed. If there is no {found.name}, give it that name again and delete its "
                f"{QUARANTINED_JSON}; else delete the folder"
            )
        if found.awaits_validation:
            return replace(found, validation=self._validation_of(found))
        return found

    def _validation_of(self, checkpoint: Checkpoint) -> dict[str, float | None] | None:
        key = f"{validation_key(checkpoint.name)}/{MANIFEST_JSON}"
        try:
            return read_manifest(self.store, EvaluationManifest, key)[0].metrics
        except FileNotFoundError:
            return None
        except CheckpointError as error:
            _log.warning("a damaged result is left out: %s", error)
            return {}

    def find(self, name: str) -> Checkpoint:
        """The checkpoint called `name`. Raises FileNotFoundError if it was deleted."""
        parsed = CheckpointName.parse(name)
        if parsed is None:
            raise ValueError(f"{name!r} is not the name of a checkpoint")
        return self.checkpoint(parsed)

    def summary(self, checkpoint: Checkpoint) -> CheckpointSummary:
        """The checkpoint in short."""
        return CheckpointSummary(
            name=str(checkpoint.name),
            uri=self.store.uri(checkpoint.key),
            step=checkpoint.step,
            epoch=checkpoint.manifest.epoch,
            metrics=checkpoint.metrics,
        )

    def results(self, above: str, model: type[M]) -> Iterator[tuple[str, M]]:
        """The committed results directly below the key `above`: each one's key and manifest."""
        for name in self.store.names(above):
            key = f"{above}/{name}"
            try:
                yield key, read_manifest(self.store, model, f"{key}/{MANIFEST_JSON}")[0]
            except FileNotFoundError:
                continue
            except CheckpointError as error:
                _log.warning("a damaged result is left out: %s", error)

    def quarantined(self) -> dict[str, str]:
        """Why each quarantined checkpoint is, by its name."""
        parsed = map(CheckpointName.parse, self.store.names(CHECKPOINTS))
        reasons = ((str(name), quarantine_reason(self.store, name)) for name in parsed if name)
        return {text: reason for text, reason in reasons if reason is not None}

    def report(self) -> dict[str, Any] | None:
        """The outcome, or None while the run has none. Raises CheckpointError if it is damaged."""
        try:
            return read_object(self.store, REPORT_JSON)
        except FileNotFoundError:
            return None

    def live(self) -> dict[str, Any] | None:
        """Where the training is right now, by its live.json; None if that cannot be read."""
        try:
            return read_object(self.store, LIVE_JSON)
        except FileNotFoundError:
            return None
        except CheckpointError as error:
            # A hint for people: nothing depends on it.
            _log.debug("live.json is left out: %s", error)
            return None
