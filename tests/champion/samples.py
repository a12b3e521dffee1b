"""Versions, decisions and champions that several tests need, recorded in a log or as before it."""

from __future__ import annotations

from typing import Any

from train_core.champion.history import ModelHistory
from train_core.champion.log import ModelLog
from train_core.champion.records import Record, version_of
from train_core.policy.champion.gate_decision import Evidence, Outcome, Score
from train_core.policy.champion.gate_options import GateOptions
from train_core.results import (
    Approval,
    ChampionEntry,
    Comparison,
    Decision,
    GateResult,
    ModelVersion,
)
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import with_checksum
from train_core.storage.records.names import DecisionName, numbered
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter

MODEL = "Digits"
WHEN = "2026-01-01T00:00:00+00:00"


def version(number: int = 1, run: str = "run", model: str = MODEL) -> ModelVersion:
    return ModelVersion(
        model=model,
        version=number,
        run=run,
        checkpoint="step-00000001-a0001",
        checkpoint_digest=f"{number:064d}",
        created_at=WHEN,
    )


def decision(challenger: ModelVersion | None = None, champion: int = 0, **changes: Any) -> Decision:
    """A decision on a version in comparison with the champion of that number."""
    made = Decision(
        created_at=WHEN,
        challenger=challenger or version(),
        champion=version(1, "before") if champion else None,
        champion_number=champion,
        metric="accuracy",
        order="max",
        comparison=Comparison(
            split="test", num_rows=40, data_digest="", confidence=0.95, num_resamples=0, seed=0
        ),
        evidence=Evidence(Score(0.9)),
        rules=GateOptions(),
        outcome=Outcome.PROMOTE,
        reasons=("there was no champion before it, and accuracy is 0.9",),
    )
    return made.model_copy(update=changes)


def approval(of: Decision, *, is_approved: bool = True) -> Approval:
    return Approval(
        version=of.challenger,
        champion_number=of.champion_number,
        is_approved=is_approved,
        person="ann",
        reason="looked at it",
        created_at=WHEN,
    )


def entry(number: int = 1, of: ModelVersion | None = None, **changes: Any) -> ChampionEntry:
    """The entry that makes a version the champion of that number."""
    made = ChampionEntry(
        number=number,
        version=of or version(),
        created_at=WHEN,
        by="gate",
        decided_by=f"run/decisions/{MODEL}/v00000001-c{number - 1:08d}.json",
        reason="it is better",
    )
    return made.model_copy(update=changes)


def add_events(storage: str, *records: Record) -> ModelHistory:
    """Record these as the next events of their model's log, whatever was before."""
    log = ModelLog(storage, version_of(records[0]).model)
    for one in records:
        history = log.record(lambda _, one=one: one)
    return history


def register(folder: RunFolder, version: ModelVersion) -> None:
    """Record a version of the run in its model's log, and note that in the run."""
    history = add_events(folder.storage, version)
    note(folder, history, version)


def note(folder: RunFolder, history: ModelHistory, version: ModelVersion) -> None:
    """What a driver notes in the run of a version that it has registered."""
    attempt = max(
        (int(name[:4]) for name in folder.store.names("lease") if name[:4].isdigit()), default=1
    )
    RunWriter(folder, attempt).note_version(version, history.number_of(version))


def decide(folder: RunFolder, made: Decision) -> GateResult:
    """Record a decision on a version that the run has in its model's log."""
    return add_events(folder.storage, made).result(made)


def promote(folder: RunFolder, made: Decision) -> GateResult:
    """Record the champion that follows from a decision, whatever was before."""
    history = ModelLog(folder.storage, made.challenger.model).read()
    return add_events(folder.storage, history.entry_of(history.result(made))).result(made)


def earlier_key(of: Record) -> str:
    """Where it lies in a storage of before the log."""
    its = version_of(of)
    match of:
        case ModelVersion():
            return f"_models/{its.model}/versions/{numbered(of.version)}"
        case ChampionEntry():
            return f"_models/{its.model}/champions/{numbered(of.number)}"
        case Decision():
            name = DecisionName(its.model, its.version, of.champion_number)
            return f"{its.run}/decisions/{name}"
        case Approval():
            name = DecisionName(its.model, its.version, of.champion_number)
            _, _, file = str(name).partition("/")
            return f"{its.run}/decisions/{its.model}/answers/{file}"


def write_earlier(storage: str, *records: Record) -> None:
    """Create the documents that an evertrain of before the log had for these."""
    for one in records:
        Store(storage).create(earlier_key(one), with_checksum(one))
