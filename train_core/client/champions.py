"""The champions of a registered model: who was it when, back to an earlier one, a person's answer.

All functions raise ConfigError for a model, version or run that is not there, and StorageError.
The storage's records are what counts; `show_champion` and `show_decision` bring MLflow up to date.
"""

from __future__ import annotations

import getpass
from datetime import UTC, datetime

from train_core.champion.history import ModelHistory
from train_core.champion.log import ModelLog, registered_models
from train_core.champion.records import Fault
from train_core.client.isolated import isolated_call
from train_core.entry_points import SHOW_ALIASES, SHOW_GATE
from train_core.errors import CheckpointError, ConfigError
from train_core.policy.champion.gate_decision import Outcome
from train_core.policy.champion.model_names import is_model_name
from train_core.policy.champion.model_state import NextStep
from train_core.results import Approval, ChampionEntry, Decision, GateResult, ModelVersion, Result
from train_core.storage.run_folder import RunFolder


class Unreadable(Result):
    """A document of a model that cannot be read: it hides no other."""

    number: int | None
    """The version's or the champion's; None: it may be an event of any kind."""
    fault: str


def champions(storage: str, model: str) -> list[ChampionEntry | Unreadable]:
    """All champions of the model, oldest first; the last one is the champion now."""
    return [
        Unreadable(number=one.champion_number, fault=str(one.error))
        if isinstance(one, Fault)
        else one
        for one in _log(storage, model).read().champions
    ]


def versions(
    storage: str, model: str
) -> list[tuple[ModelVersion | Unreadable, GateResult | Unreadable | None]]:
    """All versions of the model, oldest first, each with the newest that the gate has decided.

    None: nothing yet, or its run was deleted before the model had a log.
    """
    history = _log(storage, model).read()
    unread = {one.version: one for one in history.faults if one.version is not None}
    found: list[tuple[ModelVersion | Unreadable, GateResult | Unreadable | None]] = []
    for number in sorted(history.versions.keys() | unread.keys()):
        version = history.versions.get(number)
        if version is None:
            found.append((Unreadable(number=number, fault=str(unread[number].error)), None))
            continue
        result: GateResult | Unreadable | None
        try:
            result = history.newest_result(number)
        except (CheckpointError, ConfigError) as error:
            result = Unreadable(number=number, fault=str(error))
        found.append((version, result))
    unknown = (one for one in history.faults if one.version is None and not one.champion_number)
    return found + [(Unreadable(number=None, fault=str(one.error)), None) for one in unknown]


def rollback(
    storage: str, model: str, reason: str, *, to: int | None = None, person: str = ""
) -> ChampionEntry:
    """Make an earlier version the champion again: version `to`, or the champion before this one.

    `person` is recorded, by default the user of this process. Raises ConfigError, too, if there is
    no earlier champion, if that was rejected and is not named by `to`, if the gate never decided on
    that version, if its checkpoint is not there any more, or if another champion was chosen
    meanwhile.
    """
    log = _log(storage, model)
    seen: list[int] = []

    def judge(history: ModelHistory) -> ChampionEntry:
        champion = history.champion
        if champion is None:
            raise ConfigError(
                f"model {model!r} in {storage} has no champion that could be replaced"
            )
        seen.append(champion.number)
        if champion.number != seen[0]:
            raise ConfigError(
                f"another champion of {model!r} was chosen just now: look at `evertrain champions "
                f"{model}` and try again"
            )
        version = _to_go_back_to(history, champion.version, to)
        _check_there(storage, version)
        if history.newest_result(version.version) is None:
            raise ConfigError(
                f"{version.address} cannot be champion: the gate has not decided on it"
            )
        chosen = [one for one in history.entries if one.version == version]
        return ChampionEntry(
            number=history.next_champion_number(),
            version=version,
            created_at=datetime.now(UTC).isoformat(),
            by="rollback",
            decided_by=person or _user(),
            reason=reason,
            data_digest=chosen[-1].data_digest if chosen else "",
            num_rows=chosen[-1].num_rows if chosen else 0,
        )

    return log.record(judge).entries[-1]


def _to_go_back_to(history: ModelHistory, present: ModelVersion, to: int | None) -> ModelVersion:
    number = history.state.champion_before() if to is None else to
    if number is None:
        raise ConfigError(
            f"model {history.model!r} in {history.storage} had no champion before {present.address}"
        )
    version = history.version(number)
    if version == present:
        raise ConfigError(f"{version.address} is the champion already")
    step, result = history.what_follows(number)
    if to is None and step is NextStep.REJECTED:
        said = f": {result.summary}" if result else ""
        raise ConfigError(
            f"the champion before this one was rejected since{said}. `--to {number}` goes back to "
            "it all the same"
        )
    return version


def approve(
    storage: str,
    model: str,
    version: int,
    reason: str,
    *,
    is_approved: bool = True,
    person: str = "",
) -> GateResult:
    """Answer a gate that asks for approval; an approved version becomes champion.

    The same answer again completes what a process that was killed has left. Raises ConfigError,
    too, if the gate does not ask, if somebody has given the other answer, or if another champion
    was chosen since: then the run has to be continued, which compares its version with that one.
    """
    log = _log(storage, model)
    seen: list[Decision] = []

    def answer(history: ModelHistory) -> Approval | None:
        found = history.version(version)
        step, result = history.what_follows(version)
        is_asked = result is not None and result.decision.outcome == Outcome.ASK
        is_answered = is_asked and result is not None and bool(result.entry or result.approval)
        if step is NextStep.SERVES and not is_answered:
            raise ConfigError(
                f"{found.address} is the champion, and nobody is asked any more: `evertrain "
                f"rollback {model}` goes back to the one before it"
            )
        if result is None or not is_asked:
            raise ConfigError(f"the gate does not ask for an approval of {found.address}")
        if is_answered:
            # The first answer counts.
            _check_agreed(result, is_approved=is_approved)
        if result.entry or step is NextStep.REJECTED:
            return None
        seen.append(result.decision)
        if is_approved and result.decision != seen[0]:
            raise ConfigError(
                f"{found.address} was compared with another champion just now: look at `evertrain "
                f"champions {model} --versions` and try again"
            )
        if is_approved:
            _check_there(storage, found)
            _check_compared(found, step)
        if result.approval:
            return None
        return Approval(
            version=found,
            champion_number=result.decision.champion_number,
            is_approved=is_approved,
            person=person or _user(),
            reason=reason,
            created_at=datetime.now(UTC).isoformat(),
        )

    def promotion(history: ModelHistory) -> ChampionEntry | None:
        step, result = history.what_follows(version)
        assert result is not None
        _check_agreed(result, is_approved=True)
        if result.entry:
            return None
        _check_compared(history.version(version), step)
        return history.entry_of(result) if step is NextStep.PROMOTE else None

    history = log.record(answer)
    if is_approved:
        history = log.record(promotion)
    result = history.newest_result(version)
    assert result is not None
    return result


def _check_compared(version: ModelVersion, step: NextStep) -> None:
    """Raise ConfigError if the version is yet to be compared with the present champion."""
    if step is NextStep.COMPARE:
        raise ConfigError(
            f"another champion was chosen since {version.address} was compared: `evertrain runs "
            f"resume {version.run}` compares it with that one"
        )


def _check_agreed(result: GateResult, *, is_approved: bool) -> None:
    """Raise ConfigError if somebody else has given the other answer."""
    was_approved = result.entry is not None or (
        result.approval is not None and result.approval.is_approved
    )
    if was_approved != is_approved:
        raise ConfigError(f"somebody has answered before: {result.summary}")


def show_champion(storage: str, model: str, tracking_uri: str) -> None:
    """Let MLflow's aliases follow the records. Raises StageError if MLflow does not answer."""
    isolated_call(SHOW_ALIASES, storage=storage, model=model, tracking_uri=tracking_uri)


def show_decision(storage: str, version: ModelVersion, tracking_uri: str) -> None:
    """Show the newest decision on a version, and the aliases, in MLflow.

    Raises TrackingError if it does not have the run, StageError if it does not answer.
    """
    url = RunFolder(storage, version.run).url
    asked = {"model": version.model, "version": version.version, "tracking_uri": tracking_uri}
    isolated_call(SHOW_GATE, run_url=url, **asked)


def _log(storage: str, model: str) -> ModelLog:
    there = registered_models(storage)
    if not is_model_name(model) or model not in there:
        raise ConfigError(
            f"there is no registered model {model!r} in {storage}: {', '.join(there) or 'none'}"
        )
    return ModelLog(storage, model)


def _check_there(storage: str, version: ModelVersion) -> None:
    folder = RunFolder(storage, version.run)
    try:
        digest = folder.find(version.checkpoint).digest
    except (FileNotFoundError, CheckpointError) as error:
        raise ConfigError(f"{version.address} cannot be champion: {error}") from error
    if digest != version.checkpoint_digest:
        raise ConfigError(
            f"{version.address} cannot be champion: {version.checkpoint} of run {version.run!r} is "
            "not what was registered"
        )


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        return "somebody"
