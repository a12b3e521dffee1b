"""The gate's decisions on a run's versions, and what people answered.

<run>/decisions/<model>/
    v00000003-c00000001.json            version 3, compared with the champion of entry 1
    answers/v00000003-c00000001.json    what a person answered, if that decision asks for it

These documents and the champions' entries are read as events, whose fold says what follows
(`policy/champion/model_state.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from train_core.errors import CheckpointError, ConfigError
from train_core.policy.champion.gate_decision import Outcome
from train_core.policy.champion.model_state import (
    Answered,
    Decided,
    Event,
    ModelState,
    NextStep,
    Promoted,
    RolledBack,
    fold,
)
from train_core.results import Approval, ChampionEntry, Decision, GateResult, ModelVersion
from train_core.storage.records.documents import read_document
from train_core.storage.records.names import DECISIONS, DecisionName
from train_core.storage.registered_models.model_registry import ModelRegistry
from train_core.storage.run_folder import RunFolder
from train_core.storage.runs_of_storage import is_training_finished

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


@dataclass(frozen=True)
class RunDecisions:
    """The gate's decisions on a run's versions of one model, the answers, and the model's state.

    What follows for a version of this run depends on no other run's decisions, and on no champion
    but the present one, so the state has these.
    """

    folder: RunFolder
    decisions: dict[tuple[int, int], Decision]
    """By the version, and the number of the champion that it is compared with."""
    state: ModelState

    @classmethod
    def read(
        cls,
        folder: RunFolder,
        model: str,
        version: int | None = None,
        champion: ChampionEntry | None = None,
    ) -> RunDecisions:
        """Read all decisions on the run's versions of a model, or on that version only.

        `champion` is the entry of the present one; not needed where nothing is to follow. Raises
        CheckpointError if a decision or an answer was altered: it may have been a rejection.
        """
        found = (find_decision(folder, name) for name in _names(folder, model, version))
        decisions = {(one.challenger.version, one.champion_number): one for one in found if one}
        approvals = [answer for one in decisions.values() if (answer := find_approval(folder, one))]
        champions = [champion] if champion else []
        events = _events(decisions.values(), approvals, champions)
        return cls(folder, decisions, fold(events))

    def standing(self, version: int) -> Decision | None:
        """The decision on the version that counts; None if the gate has not decided on it."""
        compared = self.state.standing(version)
        return self.decisions[compared] if compared else None


def _events(
    decisions: Iterable[Decision],
    approvals: Iterable[Approval],
    champions: Iterable[ChampionEntry],
) -> Iterator[Event]:
    """What the documents say, as events.

    What answers which decision, and which champion followed by it, are facts of the documents
    themselves, so the order of the three kinds among each other does not matter.
    """
    for one in decisions:
        yield Decided(one.challenger.version, one.champion_number, one.outcome)
    for answer in approvals:
        yield Answered(answer.version.version, answer.champion_number, answer.is_approved)
    yield from reigns(champions)


def reigns(champions: Iterable[ChampionEntry]) -> Iterator[Promoted | RolledBack]:
    """The champions' entries as events."""
    for entry in champions:
        reign = RolledBack if entry.by == "rollback" else Promoted
        yield reign(entry.version.version, entry.number)


def newest_decision(folder: RunFolder, version: ModelVersion) -> Decision | None:
    """The newest decision on a version, which is one of this run; None if there is none.

    Of a version that a person has rejected it is the decision that was answered so, as none counts
    after that. Raises CheckpointError if it was altered, or if another checkpoint is registered as
    the version.
    """
    return _standing(RunDecisions.read(folder, version.model, version.version), version)


def _standing(found: RunDecisions, version: ModelVersion) -> Decision | None:
    decision = found.standing(version.version)
    # Not its time: a model that was deleted, and its versions registered again, has other times.
    if decision and _checkpoint(decision.challenger) != _checkpoint(version):
        raise CheckpointError(
            f"{found.folder.store.uri(decision_key(decision))} is on another checkpoint than the "
            f"one that is registered as {version.address}"
        )
    return decision


def _checkpoint(version: ModelVersion) -> tuple[str, str, str]:
    return version.run, version.checkpoint, version.checkpoint_digest


def what_follows(
    folder: RunFolder, version: ModelVersion, champion: ChampionEntry | None
) -> tuple[NextStep, GateResult | None]:
    """What follows for a version while that champion serves, and the decision that counts.

    It is the one that says what follows, but where the version serves, or is yet to be compared
    with that champion. None: the gate has never decided on the version. Raises CheckpointError as
    `newest_decision`.
    """
    found = RunDecisions.read(folder, version.model, version.version, champion)
    decision = _standing(found, version)
    step = found.state.next_step(version.version)
    return step, gate_result(folder, decision) if decision else None


@dataclass(frozen=True)
class Question:
    """What a person is, or was, asked about a run."""

    version: ModelVersion
    is_answered: bool
    """A person has answered, or the version is champion without that."""


def newest_result(folder: RunFolder) -> GateResult | None:
    """What became of the run's version by the gate's newest decision; None if there is none.

    Raises CheckpointError if a decision or an answer was altered.
    """
    decision = max(newest_decisions(folder), key=lambda one: one.created_at, default=None)
    return gate_result(folder, decision) if decision else None


def question_of(folder: RunFolder) -> Question | None:
    """What a person is asked about the run, if the gate's newest decision on it asks one.

    Another champion may have been chosen meanwhile. Raises CheckpointError if a decision or an
    answer was altered.
    """
    return _question(folder, newest_result(folder))


def _question(folder: RunFolder, found: GateResult | None) -> Question | None:
    if found is None or found.decision.outcome != Outcome.ASK:
        return None
    version = found.decision.challenger
    champion = ModelRegistry(folder.storage, version.model).champion()
    is_champion = champion is not None and champion.version == version
    return Question(version, is_champion or found.approval is not None)


def question_after_training(folder: RunFolder, found: GateResult | None) -> Question | None:
    """As `question_of`, of a run that was not asked to train further since.

    `found` is its newest result.
    """
    question = _question(folder, found)
    if question is None:
        return None
    is_over = is_training_finished(folder.newest(), folder.newest_request().config)
    return question if is_over else None


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
    """As `newest_decision`, of each version that the run has, oldest version first."""
    read = [RunDecisions.read(folder, model) for model in sorted(folder.store.names(DECISIONS))]
    found = [one.standing(version) for one in read for version in one.state.decided]
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
        by = f'{approval.person} ("{approval.reason}")'
        reason = f"approved by {by}: {decision.why_answered}"
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


def _names(folder: RunFolder, model: str, version: int | None = None) -> list[DecisionName]:
    """Of the decisions on the run's versions of a model, or on one of them, oldest first."""
    there = folder.store.names(f"{DECISIONS}/{model}")
    found = filter(None, (DecisionName.parse(f"{model}/{name}") for name in there))
    return sorted(one for one in found if version in (None, one.version))
