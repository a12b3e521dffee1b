"""The champions of a registered model: who was it when, back to an earlier one, a person's answer.

All functions raise ConfigError for a model, version or run that is not there, and StorageError.
The storage's records are what counts; `show_champion` and `show_decision` bring MLflow up to date.
"""

from __future__ import annotations

import getpass
from collections.abc import Callable
from datetime import UTC, datetime
from typing import TypeVar

from train_core.client.isolated import isolated_call
from train_core.entry_points import SHOW_ALIASES, SHOW_GATE
from train_core.errors import CheckpointError, ConfigError
from train_core.policy.champion.gate_decision import Outcome
from train_core.policy.champion.model_names import is_model_name
from train_core.policy.champion.model_state import NextStep, fold
from train_core.results import Approval, ChampionEntry, GateResult, ModelVersion, Result
from train_core.storage.committed import in_threads
from train_core.storage.registered_models.decisions import (
    entry_of,
    gate_result,
    newest_decision,
    reigns,
    what_follows,
)
from train_core.storage.registered_models.model_registry import ModelRegistry, registered_models
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import ResultWriter

T = TypeVar("T")


class Unreadable(Result):
    """A version, a champion's entry or a decision that cannot be read: it hides no other."""

    number: int
    fault: str


def champions(storage: str, model: str) -> list[ChampionEntry | Unreadable]:
    """All champions of the model, oldest first; the last one is the champion now."""
    registry = _registry(storage, model)
    found = in_threads(lambda one: _read(registry.entry, one), registry.champion_numbers())
    return [one for one in found if one]


def versions(
    storage: str, model: str
) -> list[tuple[ModelVersion | Unreadable, GateResult | Unreadable | None]]:
    """All versions of the model, oldest first, each with the newest that the gate has decided.

    None: nothing yet, or its run was deleted.
    """
    registry = _registry(storage, model)

    def both(
        number: int,
    ) -> tuple[ModelVersion | Unreadable, GateResult | Unreadable | None]:
        version = _read(registry.version, number)
        if isinstance(version, Unreadable):
            return version, None
        return version, _read(lambda _: _decided(storage, version), number)

    return in_threads(both, registry.version_numbers())


def rollback(
    storage: str, model: str, reason: str, *, to: int | None = None, person: str = ""
) -> ChampionEntry:
    """Make an earlier version the champion again: version `to`, or the champion before this one.

    `person` is recorded, by default the user of this process. Raises ConfigError, too, if there is
    no earlier champion, if the gate never decided on that version, or if its checkpoint is not
    there any more.
    """
    registry = _registry(storage, model)
    entries = registry.champions()
    if not entries:
        raise ConfigError(f"model {model!r} in {storage} has no champion that could be replaced")
    if to is None:
        to = fold(reigns(entries)).champion_before()
    present = entries[-1].version
    if to is None:
        raise ConfigError(f"model {model!r} in {storage} had no champion before {present.address}")
    version = registry.version(to)
    if version == present:
        raise ConfigError(f"{version.address} is the champion already")
    _check_there(storage, version)
    if _decided(storage, version) is None:
        raise ConfigError(f"{version.address} cannot be champion: the gate has not decided on it")
    chosen = [one for one in entries if one.version == version]
    entry = ChampionEntry(
        number=entries[-1].number + 1,
        version=version,
        created_at=datetime.now(UTC).isoformat(),
        by="rollback",
        decided_by=person or _user(),
        reason=reason,
        data_digest=chosen[-1].data_digest if chosen else "",
        num_rows=chosen[-1].num_rows if chosen else 0,
    )
    return _added(registry, entry)


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
    registry = _registry(storage, model)
    found = registry.version(version)
    folder = RunFolder(storage, found.run)
    step, result = what_follows(folder, found, registry.champion())
    if result is None or result.decision.outcome != Outcome.ASK:
        raise ConfigError(f"the gate does not ask for an approval of {found.address}")
    decision = result.decision
    if result.entry or result.approval:
        # The first answer counts.
        _agreed(result, is_approved=is_approved)
    if result.entry or step is NextStep.REJECTED:
        return result
    if step is NextStep.SERVES:
        raise ConfigError(f"{found.address} is the champion already: nobody is asked any more")
    if is_approved:
        _check_there(storage, found)
        _check_compared(found, step)
    if result.approval is None:
        given = Approval(
            version=decision.challenger,
            champion_number=decision.champion_number,
            is_approved=is_approved,
            person=person or _user(),
            reason=reason,
            created_at=datetime.now(UTC).isoformat(),
        )
        try:
            ResultWriter(folder).commit_approval(decision, given)
        except FileExistsError:
            # Somebody was faster: the first answer counts.
            _agreed(gate_result(folder, decision), is_approved=is_approved)
    # Meanwhile somebody may have rejected it in an earlier comparison, and its run may have made it
    # champion by a later one.
    step, stands = what_follows(folder, found, registry.champion())
    if step is NextStep.SERVES and not is_approved:
        raise ConfigError(
            f"{found.address} became champion just now, and serves: `evertrain rollback {model}` "
            "goes back to the one before it. The rejection is kept for the time after that"
        )
    result = _agreed(stands or gate_result(folder, decision), is_approved=is_approved)
    if is_approved:
        _check_compared(found, step)
    if step is NextStep.PROMOTE:
        _added(registry, entry_of(folder, result.decision, result.approval))
    return gate_result(folder, result.decision)


def _check_compared(version: ModelVersion, step: NextStep) -> None:
    """Raise ConfigError if the version is yet to be compared with the present champion."""
    if step is NextStep.COMPARE:
        raise ConfigError(
            f"another champion was chosen since {version.address} was compared: `evertrain runs "
            f"resume {version.run}` compares it with that one"
        )


def _agreed(result: GateResult, *, is_approved: bool) -> GateResult:
    """What became of the version, if that is what is asked for. Raises ConfigError otherwise."""
    was_approved = result.entry is not None or (
        result.approval is not None and result.approval.is_approved
    )
    if was_approved != is_approved:
        raise ConfigError(f"somebody has answered before: {result.summary}")
    return result


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


def _registry(storage: str, model: str) -> ModelRegistry:
    there = registered_models(storage)
    if not is_model_name(model) or model not in there:
        raise ConfigError(
            f"there is no registered model {model!r} in {storage}: {', '.join(there) or 'none'}"
        )
    return ModelRegistry(storage, model)


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


def _added(registry: ModelRegistry, entry: ChampionEntry) -> ChampionEntry:
    try:
        return registry.add_champion(entry)
    except FileExistsError:
        raise ConfigError(
            f"another champion of {registry.model!r} was chosen just now: look at "
            f"`evertrain champions {registry.model}` and try again"
        ) from None


def _read(read: Callable[[int], T], number: int) -> T | Unreadable:
    try:
        return read(number)
    except (CheckpointError, ConfigError) as error:
        return Unreadable(number=number, fault=str(error))


def _decided(storage: str, version: ModelVersion) -> GateResult | None:
    folder = RunFolder(storage, version.run)
    decision = newest_decision(folder, version)
    return gate_result(folder, decision) if decision else None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container's user may have no name.
        return "somebody"
