"""What the documents of a registered model record, and how the fold takes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from train_core.errors import CheckpointError, ConfigError
from train_core.policy.champion.model_state import (
    Answered,
    Compared,
    Decided,
    Event,
    Promoted,
    RolledBack,
)
from train_core.results import Approval, ChampionEntry, Decision, ModelVersion
from train_core.storage.records.documents import LARGEST_NUMBER
from train_core.storage.records.names import CheckpointName, is_run_name

Record = ModelVersion | Decision | Approval | ChampionEntry
"""What an event of a registered model records."""


@dataclass(frozen=True)
class Fault:
    """A document that cannot be read: what it recorded is not known."""

    error: CheckpointError | ConfigError
    """It names the document."""
    version: int | None = None
    """The only version that the document can be about; None: any."""
    champion_number: int | None = None
    """The number of the champion whose entry it is; None: it may be another document."""
    number: int = 0
    """Of the event; 0: it is of before the log."""

    @property
    def may_be_champion(self) -> bool:
        """Whether the document may be a champion's entry."""
        return self.version is None


@dataclass(frozen=True)
class Found:
    """A document of a model."""

    key: str
    """Where it lies in the storage."""
    uri: str
    record: Record | Fault
    number: int = 0
    """Of the event; 0: it is of before the log."""


def version_of(record: Record) -> ModelVersion:
    """The version that an event is about."""
    match record:
        case ModelVersion():
            return record
        case Decision():
            return record.challenger
        case Approval() | ChampionEntry():
            return record.version


def champion_number_of(record: Record) -> int:
    """The number of the champion that an event names; 0: of none."""
    match record:
        case ModelVersion():
            return 0
        case Decision() | Approval():
            return record.champion_number
        case ChampionEntry():
            return record.number


def compared(decision: Decision) -> Compared:
    """The comparison that was decided."""
    return decision.challenger.version, decision.champion_number


def is_answer_to(approval: Approval, decision: Decision) -> bool:
    """Whether the person was asked about this very decision."""
    asked = (decision.challenger, decision.champion_number)
    return (approval.version, approval.champion_number) == asked


def check_version(version: ModelVersion, uri: str) -> None:
    """Raise CheckpointError if the version that the document names is no checkpoint of a run."""
    is_one = is_run_name(version.run) and CheckpointName.parse(version.checkpoint)
    if not is_one or version.version > LARGEST_NUMBER:
        raise CheckpointError(
            f"{uri} names no checkpoint of a run: version {version.version} is {version.run!r}, "
            f"{version.checkpoint!r}"
        )


def events_of(record: Record) -> Iterator[Event]:
    """What a record says, for the fold."""
    match record:
        case Decision():
            yield Decided(*compared(record), record.outcome)
        case Approval():
            yield Answered(record.version.version, record.champion_number, record.is_approved)
        case ChampionEntry():
            reign = RolledBack if record.by == "rollback" else Promoted
            yield reign(record.version.version, record.number)
        case ModelVersion():
            pass
