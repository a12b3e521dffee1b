"""The gate's decisions on a run's versions, and what people answered.

<run>/decisions/<model>/
    v00000003-c00000001.json            version 3, compared with the champion of entry 1
    answers/v00000003-c00000001.json    what a person answered, if that decision asks for it
"""

from __future__ import annotations

from datetime import UTC, datetime

from train_core.errors import CheckpointError, ConfigError
from train_core.results import Approval, ChampionEntry, Decision, GateResult, ModelVersion
from train_core.storage.records.documents import read_document
from train_core.storage.records.names import DECISIONS, DecisionName
from train_core.storage.registered_models.model_registry import ModelRegistry
from train_core.storage.run_folder import RunFolder

_ANSWERS = "answers"


def decision_name(decision: Decision) -> DecisionName:
    """The name of a decision."""
    version = decision.challenger
    return DecisionName(version.model, version.version, decision.champion_number)


def decision_key(decision: Decision) -> str:
    """Where the decision lies in the folder of the challenger's run."""
    return f"{DECISIONS}/{decision_name(decision)}"


def decided_by(folder: RunFolder, decision: Decision) -> str:
    """How a champion's entry names the decision: the storage may have other addresses, too."""
    return f"{folder.name}/{decision_key(decision)}"


def approval_key(decision: Decision) -> str:
    """Where the answer of a person lies that the decision asks for."""
    folder, _, name = str(decision_name(decision)).rpartition("/")
    return f"{DECISIONS}/{folder}/{_ANSWERS}/{name}"


def find_decision(folder: RunFolder, name: DecisionName) -> Decision | None:
    """The decision of that name, or None.

    Raises CheckpointError if it was altered, or is another one.
    """
    key, what = f"{DECISIONS}/{name}", "a decision"
    try:
        found, _ = read_document(folder.store, Decision, key, what, has_checksum=True)
    except FileNotFoundError:
        return None
    if decision_name(found) != name:
        raise CheckpointError(f"{folder.store.uri(key)} is that of {decision_name(found)}")
    return found


def find_approval(folder: RunFolder, decision: Decision) -> Approval | None:
    """What a person answered; None if nobody has.

    Raises CheckpointError if it was altered, or is the answer to another decision.
    """
    key, what = approval_key(decision), "an approval"
    try:
        found, _ = read_document(folder.store, Approval, key, what, has_checksum=True)
    except FileNotFoundError:
        return None
    if not is_answer_to(found, decision):
        raise CheckpointError(f"{folder.store.uri(key)} is the answer to another decision")
    return found


def is_answer_to(approval: Approval, decision: Decision) -> bool:
    """Whether the person was asked about this very decision."""
    asked = (decision.challenger, decision.champion_number)
    return (approval.version, approval.champion_number) == asked


def newest_decision(folder: RunFolder, version: ModelVersion) -> Decision | None:
    """The newest decision on a version, which is one of this run; None if there is none.

    Raises CheckpointError if it was altered, or if another checkpoint is registered as the version.
    """
    names = [one for one in _names(folder, version.model) if one.version == version.version]
    found = find_decision(folder, names[-1]) if names else None
    if found and found.challenger != version:
        raise CheckpointError(
            f"{folder.store.uri(decision_key(found))} is on another checkpoint than the one that "
            f"is registered as {version.address}"
        )
    return found


def faults_of_decisions(folder: RunFolder) -> dict[str, str]:
    """What is wrong with decisions and answers that cannot be read, by the decision's key."""
    faults = {}
    models = sorted(folder.store.names(DECISIONS))
    for name in (name for model in models for name in _names(folder, model)):
        try:
            if found := find_decision(folder, name):
                find_approval(folder, found)
        except (CheckpointError, ConfigError) as error:
            faults[f"{DECISIONS}/{name}"] = str(error)
    return faults


def newest_decisions(folder: RunFolder) -> list[Decision]:
    """The newest decision on each version that the run has, oldest version first."""
    models = sorted(folder.store.names(DECISIONS))
    newest = {(one.model, one.version): one for model in models for one in _names(folder, model)}
    found = (find_decision(folder, name) for name in newest.values())
    return [decision for decision in found if decision]


def gate_result(folder: RunFolder, decision: Decision) -> GateResult:
    """What became of a decision: the answer that it asked for, and the champion's entry."""
    registry = ModelRegistry(folder.storage, decision.challenger.model)
    entry = registry.entry(decision.champion_number + 1)
    is_its = entry is not None and entry.decided_by == decided_by(folder, decision)
    return GateResult(
        decision=decision,
        decision_uri=folder.store.uri(decision_key(decision)),
        approval=find_approval(folder, decision),
        entry=entry if is_its else None,
    )


def entry_of(folder: RunFolder, decision: Decision, approval: Approval | None) -> ChampionEntry:
    """The entry that makes the decision's challenger champion after the one it is compared with."""
    reason = decision.why
    if approval:
        reason = f"approved by {approval.person} ({approval.reason}): {reason}"
    return ChampionEntry(
        number=decision.champion_number + 1,
        version=decision.challenger,
        created_at=datetime.now(UTC).isoformat(),
        by="approval" if approval else "gate",
        decided_by=decided_by(folder, decision),
        reason=reason,
        data_digest=decision.comparison.data_digest,
        num_rows=decision.comparison.num_rows,
    )


def _names(folder: RunFolder, model: str) -> list[DecisionName]:
    """Of the decisions on the run's versions of a model, oldest version and champion first."""
    there = folder.store.names(f"{DECISIONS}/{model}")
    return sorted(filter(None, (DecisionName.parse(f"{model}/{name}") for name in there)))
