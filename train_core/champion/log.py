"""The log of a registered model: all that happened to it, as one document an event.

<storage>/_models/<name>/log/00000007.json      registered, decided, answered, promoted, rolled back

Whoever wants to record an event reads all, judges by it, and creates the next number. Of several
one has the number; the others read the new event and judge again. So no event follows from anything
but all events before it. What lies in folders of before is the log's beginning (`earlier`).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal, Self

from pydantic import Field, ValidationInfo, field_validator

from train_core.champion.earlier import Earlier, close, numbers_of, read_earlier, too_great
from train_core.champion.history import ModelHistory
from train_core.champion.records import Fault, Found, Record, check_version, version_of
from train_core.errors import CheckpointError, ConfigError
from train_core.policy.champion.model_names import check_model_name, is_model_name
from train_core.results import Approval, ChampionEntry, Decision, ModelVersion, Result
from train_core.storage.committed import in_threads
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import read_document, with_checksum
from train_core.storage.records.names import EVENTS, MODELS, numbered

Judge = Callable[[ModelHistory], Record | None]
"""What to record after this history; None: nothing."""


_RECORDS: dict[str, type[Record]] = {
    "registered": ModelVersion,
    "decided": Decision,
    "answered": Approval,
    "promoted": ChampionEntry,
    "rolled_back": ChampionEntry,
}
"""What the events record, by their names."""


class _Document(Result):
    """An event as it is stored."""

    format: Literal[1] = 1
    number: int = Field(ge=1)
    event: str
    record: Record

    @classmethod
    def of(cls, number: int, record: Record) -> Self:
        """The event of that number which records this."""
        return cls(number=number, event=_event_of(record), record=record)

    @field_validator("record", mode="before")
    @classmethod
    def _as_named(cls, record: Any, info: ValidationInfo) -> Any:
        """Records share fields: the event's name says which one it is."""
        name = info.data.get("event")
        if name not in _RECORDS:
            raise ValueError(f"there is no event {name!r}")
        found = _RECORDS[name].model_validate(record)
        if _event_of(found) != name:
            raise ValueError(f"it records what was {_event_of(found)}")
        return found


def _event_of(record: Record) -> str:
    """The name of the event that records this."""
    match record:
        case ModelVersion():
            return "registered"
        case Decision():
            return "decided"
        case Approval():
            return "answered"
        case ChampionEntry():
            return "rolled_back" if record.by == "rollback" else "promoted"


class ModelLog:
    """The log of one registered model.

    All methods raise StorageError. A document is read once: it never changes.
    """

    def __init__(self, storage: str, model: str) -> None:
        self.model = check_model_name(model)
        self.storage = storage
        self.store = Store(storage).child(MODELS).child(model)
        self._known: dict[int, Record] = {}

    def read(self) -> ModelHistory:
        """What has happened, as far as it can be read."""
        return self._read()[0]

    def read_since(self, number: int) -> list[Found]:
        """The events of the log from that number on."""
        return self._documents(*self._numbers(max(number, 1)))

    def record(self, judge: Judge) -> ModelHistory:
        """Record what `judge` gives for all that has happened; the history with that event.

        `judge` is asked again wherever somebody else was faster. Raises what it raises; and
        CheckpointError or ConfigError if a document cannot be read: then nothing is judged.
        """
        while True:
            history, earlier, number = self._read()
            history.check_whole()
            made = judge(history)
            if made is None:
                return history
            key = f"{EVENTS}/{numbered(number)}"
            try:
                if close(self.store, earlier):
                    continue  # and look whether an older evertrain was faster
                check_version(version_of(made), self.store.uri(key))
                self.store.create(key, with_checksum(_Document.of(number, made)))
            except FileExistsError:
                continue
            self._known[number] = made
            return history.followed_by(self._found(number, made))

    def register(
        self, run: str, checkpoint: str, digest: str, check: Callable[[], None] = lambda: None
    ) -> tuple[ModelVersion, int]:
        """The version that this checkpoint is, a new one if it is none yet, and its event's number.

        `check` is called before a new one is recorded.
        """

        def new(history: ModelHistory) -> ModelVersion | None:
            if history.registered(run, digest):
                return None
            check()
            return ModelVersion(
                model=self.model,
                version=history.next_version(),
                run=run,
                checkpoint=checkpoint,
                checkpoint_digest=digest,
                created_at=datetime.now(UTC).isoformat(),
            )

        history = self.record(new)
        version = history.registered(run, digest)
        assert version is not None
        return version, history.number_of(version)

    def _read(self) -> tuple[ModelHistory, Earlier, int]:
        """The history, what is before the log, and the log's next number."""
        # Listed first: as soon as the log has an event, what is before it is closed.
        numbers, others = self._numbers()
        earlier = read_earlier(Store(self.storage), self.model)
        found = [*earlier.found, *self._documents(numbers, others)]
        history = ModelHistory.of(self.model, self.storage, found)
        return history, earlier, len(numbers) + 1

    def _documents(self, numbers: list[int], others: list[int]) -> list[Found]:
        """The events of those numbers that are there; others are too great to be one's."""
        events = [one for one in in_threads(self._document, numbers) if one]
        for number in others:
            uri = self.store.uri(f"{EVENTS}/{numbered(number)}")
            events.append(self._found(number, Fault(too_great(uri), number=number)))
        return events

    def _document(self, number: int) -> Found | None:
        """The event of that number, or why it cannot be read; None: somebody has deleted it."""
        record: Record | Fault
        try:
            record = self._known.get(number) or self._known.setdefault(number, self._event(number))
        except FileNotFoundError:
            return None
        except (CheckpointError, ConfigError) as error:
            record = Fault(error, number=number)
        return self._found(number, record)

    def _found(self, number: int, record: Record | Fault) -> Found:
        key = f"{EVENTS}/{numbered(number)}"
        return Found(f"{MODELS}/{self.model}/{key}", self.store.uri(key), record, number)

    def _event(self, number: int) -> Record:
        key = f"{EVENTS}/{numbered(number)}"
        what = "an event of a registered model"
        document, _ = read_document(self.store, _Document, key, what, has_checksum=True)
        version, uri = version_of(document.record), self.store.uri(key)
        if (version.model, document.number) != (self.model, number):
            raise CheckpointError(
                f"{uri} is that of number {document.number} of {version.model!r}: it was renamed"
            )
        check_version(version, uri)
        return document.record

    def _numbers(self, first: int = 1) -> tuple[list[int], list[int]]:
        return numbers_of(self.store.names(EVENTS), first)


def registered_models(storage: str) -> list[str]:
    """The names of the storage's registered models, sorted."""
    return sorted(filter(is_model_name, Store(storage).child(MODELS).names("")))


def championships(storage: str, run: str) -> list[ModelVersion]:
    """The versions that are a champion now and a checkpoint of this run.

    Raises CheckpointError or ConfigError if a document may name another champion and cannot be
    read.
    """
    found = (ModelLog(storage, model).read().champion for model in registered_models(storage))
    return [entry.version for entry in found if entry and entry.version.run == run]
