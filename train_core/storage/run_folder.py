"""The run folder: the source of truth of a run, on any storage.

<storage>/<run>/
    run.json            what was asked; created once
    data/               the files of the workload's data (see `data_files`), what it fitted to them
    asked/              what was asked of it later (see `amendments`)
    lease/              the attempts, and which process drives the run (see `lease`)
    checkpoints/step-00001200-a0007/    files, then manifest.json: the commit
    journal/            every metric of every step, in segments
    pins/<checkpoint>/  readers of a checkpoint, which therefore stays (see `pins`)
    evaluations/  predictions/          results with manifests of their own
    decisions/          where a registered model's log has versions of the run
    calls/              calls into a driver that is a job of a cluster (see `job_mailbox`)
    report.json         the outcome
    curves.png          the curves of the run, drawn for MLflow and Prefect
    live.json           where the training is right now: a hint, not truth
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator
from copy import copy
from typing import Any, Self

from train_core.errors import CheckpointError, ConfigError
from train_core.results import CheckpointSummary
from train_core.storage.committed import (
    Commit,
    R,
    Scan,
    open_checkpoint,
    quarantined_names,
    results,
    scan,
)
from train_core.storage.objects.digest_algorithm import digest_of
from train_core.storage.objects.retry_policy import RetryPolicy
from train_core.storage.objects.store import Store
from train_core.storage.records.amendments import Amendment, newest_amendment
from train_core.storage.records.data_files import FileList, key_of, read_file_list
from train_core.storage.records.documents import read_document, read_object, read_small
from train_core.storage.records.manifest import is_committed
from train_core.storage.records.names import (
    CHECKPOINTS,
    CURVES_PNG,
    LIVE_JSON,
    REPORT_JSON,
    RUN_JSON,
    CheckpointName,
    check_run_name,
)
from train_core.storage.records.quarantine import quarantine_reason
from train_core.storage.records.run_record import RunRecord
from train_core.storage.records.verified_files import read_file

__all__ = ["Commit", "RunFolder"]
_log = logging.getLogger(__name__)


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

    def record_digest(self) -> str:
        """The digest of run.json, which tells runs apart. Raises as `record`."""
        return digest_of(read_small(self.store, RUN_JSON))

    def curves(self) -> bytes:
        """The picture of the metrics. Raises as `record`."""
        return read_small(self.store, CURVES_PNG)

    def files_of(self, record: RunRecord) -> FileList | None:
        """The data files of the run; None if its workload names none, or none were recorded.

        Raises CheckpointError if the list is damaged.
        """
        return read_file_list(self.store, record.files) if record.files else None

    def fitted_of(self, record: RunRecord) -> bytes | None:
        """What the workload fitted to its training split, as a file; None: nothing.

        Raises CheckpointError if it is damaged.
        """
        if record.fitted is None:
            return None
        return bytes(read_file(self.store, key_of(record.fitted), record.fitted))

    def newest_request(self, record: RunRecord | None = None) -> Amendment:
        """What was requested last: the newest amendment, or else the record. Raises as `record`.

        `record` is the run's, if it was read already.
        """
        if found := newest_amendment(self.store):
            return found
        record = record or self.record()
        return Amendment(config=record.config, pipeline=record.pipeline)

    def scan(self) -> Scan:
        """All that lies among the checkpoints: for what only looks at the run."""
        return scan(self.store)

    def checkpoints(self) -> list[Commit]:
        """The committed checkpoints, oldest first; damaged and quarantined ones are left out.

        Raises ConfigError if a newer evertrain committed one: who goes on without it may lose it.
        """
        found = self.scan()
        found.refuse_newer()
        return found.good

    def newest(self) -> Commit | None:
        """The newest of `checkpoints`; None if there is none."""
        return next(reversed(self.checkpoints()), None)

    def damaged(self) -> dict[str, str]:
        """What is wrong with manifests that cannot be read, by checkpoint; quarantined ones not."""
        return {str(name): reason for name, reason in self.scan().damaged.items()}

    def reported(self) -> list[Commit]:
        """Those of `checkpoints` that are folders which a training function reported."""
        return [one for one in self.checkpoints() if one.manifest.reported]

    def newest_reported(self) -> Commit | None:
        """The newest of `reported`; None if there is none."""
        return next(reversed(self.reported()), None)

    def committed_names(self, known: Collection[str] = ()) -> set[str]:
        """The names of the checkpoints that look committed; after the `known` ones nobody looks.

        The requests are cheap: they may be made at every poll.
        """
        parsed = map(CheckpointName.parse, self.store.names(CHECKPOINTS))
        return {
            str(name)
            for name in parsed
            if name and (str(name) in known or self.exists_checkpoint(name))
        }

    def exists_checkpoint(self, name: CheckpointName) -> bool:
        """Whether the checkpoint was committed and is not deleted."""
        return is_committed(self.store, name)

    def checkpoint(self, name: CheckpointName) -> Commit:
        """One checkpoint. Raises as `open_checkpoint`."""
        return open_checkpoint(self.store, name)

    def find(self, name: str) -> Commit:
        """The checkpoint called `name`. Raises FileNotFoundError if it was deleted."""
        parsed = CheckpointName.parse(name)
        if parsed is None:
            raise ValueError(f"{name!r} is not the name of a checkpoint")
        return self.checkpoint(parsed)

    def summary(self, checkpoint: Commit) -> CheckpointSummary:
        """The checkpoint in short."""
        return CheckpointSummary(
            name=str(checkpoint.name),
            uri=self.store.uri(checkpoint.key),
            step=checkpoint.step,
            epoch=checkpoint.manifest.epoch,
            metrics=checkpoint.metrics,
        )

    def results(self, above: str, model: type[R]) -> Iterator[tuple[str, R]]:
        """The committed results directly below the key `above`: each one's key and manifest."""
        return results(self.store, above, model)

    def quarantined(self) -> dict[str, str]:
        """Why each quarantined checkpoint is, by its name."""
        names = quarantined_names(self.store)
        reasons = ((str(name), quarantine_reason(self.store, name)) for name in names)
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
