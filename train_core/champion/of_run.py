"""What became of a run's versions: few documents are read, as its folder says where they begin.

<run>/decisions/<model>/registered-00000007.json    the event of the log that registers a version

What happens to a version comes after it is registered. A folder of before names its models by the
decisions that lie there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from train_core.champion.earlier import read_earlier_of_run
from train_core.champion.history import ModelHistory
from train_core.champion.log import ModelLog
from train_core.champion.records import Fault
from train_core.policy.champion.gate_decision import Outcome
from train_core.policy.champion.model_names import is_model_name
from train_core.results import GateResult, ModelVersion
from train_core.storage.objects.store import Store
from train_core.storage.records.names import DECISIONS, DecisionName, registered_number
from train_core.storage.run_folder import RunFolder
from train_core.storage.runs_of_storage import is_training_finished

Logs = dict[str, ModelLog]
"""Logs that were read already, by their models: a document is read once for many runs."""


@dataclass(frozen=True)
class Question:
    """What a person is, or was, asked about a run."""

    version: ModelVersion
    is_answered: bool
    """A person has answered, or the version is champion without that."""


@dataclass(frozen=True)
class RunGate:
    """The gate's newest decision on a run, and what became of it."""

    result: GateResult
    is_champion: bool
    """Whether its version serves, by that decision or by a rollback."""

    @property
    def question(self) -> Question | None:
        """What a person is asked about the run, if the decision asks."""
        if self.result.decision.outcome != Outcome.ASK:
            return None
        is_answered = self.is_champion or self.result.approval is not None
        return Question(self.result.decision.challenger, is_answered)


def gates_of(folder: RunFolder, logs: Logs | None = None) -> list[RunGate]:
    """The newest decision on each of the run's versions, oldest version first.

    Of a version that a person has rejected it is the decision that was answered so, as none counts
    after that. Raises CheckpointError or ConfigError if what became of a version may be in a
    document that cannot be read.
    """
    return [
        RunGate(result, history.state.champion == version)
        for history in _histories(folder, logs)
        for version in _versions(history, folder.name)
        if (result := history.newest_result(version))
    ]


def newest_gate(folder: RunFolder, logs: Logs | None = None) -> RunGate | None:
    """The newest of `gates_of`; None if the gate has not decided on the run."""
    found = gates_of(folder, logs)
    return max(found, key=lambda one: one.result.decision.created_at, default=None)


def question_of(folder: RunFolder) -> Question | None:
    """What a person is asked about the run, if the gate's newest decision on it asks one.

    Another champion may have been chosen meanwhile. Raises as `gates_of`.
    """
    gate = newest_gate(folder)
    return gate.question if gate else None


def question_after_training(folder: RunFolder, gate: RunGate | None) -> Question | None:
    """The question of the run's newest gate, if it was not asked to train further since."""
    question = gate.question if gate else None
    if question is None:
        return None
    is_over = is_training_finished(folder.newest(), folder.newest_request().config)
    return question if is_over else None


def result_now(folder: RunFolder, result: GateResult) -> GateResult:
    """What became by now of a decision on a version of the run."""
    model = result.decision.challenger.model
    history = _history(folder, model, ModelLog(folder.storage, model))
    return history.result(result.decision, result.decision_uri)


def faults_of(folder: RunFolder) -> dict[str, str]:
    """What is wrong with documents about the run's versions that cannot be read, by their keys.

    A key in the run folder, or of a model's log in the storage.
    """
    return {
        one.key.removeprefix(f"{folder.name}/"): str(one.record.error)
        for history in _histories(folder)
        for one in history.found
        if isinstance(one.record, Fault)
    }


def _histories(folder: RunFolder, logs: Logs | None = None) -> Iterator[ModelHistory]:
    logs = {} if logs is None else logs
    for model in filter(is_model_name, sorted(folder.store.names(DECISIONS))):
        log = logs.setdefault(model, ModelLog(folder.storage, model))
        yield _history(folder, model, log)


def _history(folder: RunFolder, model: str, log: ModelLog) -> ModelHistory:
    """What has happened since the run's first version of the model was registered."""
    names = folder.store.names(f"{DECISIONS}/{model}")
    since = min((one for name in names if (one := registered_number(name)) is not None), default=0)
    if any(DecisionName.parse(f"{model}/{name}") for name in names):
        earlier, since = read_earlier_of_run(Store(folder.storage), folder.name, model), 0
    else:
        earlier = []
    return ModelHistory.of(model, folder.storage, [*earlier, *log.read_since(since)])


def _versions(history: ModelHistory, run: str) -> list[int]:
    """The run's versions, and those of its documents of before that cannot be read."""
    registered = [one for one in history.versions.values() if one.run == run]
    decided = [one.challenger for one in history.decisions.values()]
    its = {one.version for one in (*registered, *decided) if one.run == run}
    return sorted(its | {one.version for one in history.faults if one.version is not None})
