"""The names of a flow run's last state, by which Prefect's list of runs says how it ended.

The types stay Prefect's own, Completed and Failed. An event is called after its state's name
(`prefect.flow-run.Promoted`), so `deployments/automations.yaml` expects each of these names.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from enum import StrEnum
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from prefect import State
from prefect.states import Completed, Failed

from train_core.errors import (
    ConfigError,
    DataError,
    EvertrainError,
    NotFiniteError,
    NothingBegunError,
    RunBusyError,
    StoppedError,
    UnchangedError,
    UserCodeError,
    WorkloadError,
)
from train_core.policy.champion.gate_decision import Outcome
from train_core.results import GateResult, Report

P = ParamSpec("P")
R = TypeVar("R")


class EndName(StrEnum):
    """The names that evertrain gives; `Completed` without a gate and `Failed` are Prefect's."""

    PROMOTED = "Promoted"
    """The version became champion."""
    REFUSED = "Refused"
    """The gate did not promote it: the champion stays, or there is none yet."""
    REJECTED = "Rejected"
    """A person said no."""
    AWAITS_APPROVAL = "AwaitsApproval"
    """A person has to answer, by a command: the flow run is no deployment's, or nobody is asked."""
    SKIPPED = "Skipped"
    """Nothing had changed: nothing was trained."""
    BAD_DATA = "BadData"
    BAD_INPUT = "BadInput"
    """A parameter, or anything else of the request that a person has to mend."""
    BAD_CODE = "BadCode"
    """The user's own code raised an error, or cannot be used."""
    DIVERGED = "Diverged"
    """The loss or a weight became NaN or infinite."""
    BUSY = "Busy"
    """Another process drives the run."""
    COMPLETED = "Completed"
    FAILED = "Failed"
    """The infrastructure: a retry, or the same run again, may succeed."""


_FAILURES: tuple[tuple[type[EvertrainError], EndName], ...] = (
    (DataError, EndName.BAD_DATA),
    (UserCodeError, EndName.BAD_CODE),
    (WorkloadError, EndName.BAD_CODE),
    (ConfigError, EndName.BAD_INPUT),
    (NotFiniteError, EndName.DIVERGED),
    (RunBusyError, EndName.BUSY),
)


def failure_name(error: EvertrainError) -> EndName:
    """The name of a flow run's end by this error."""
    return next((name for kind, name in _FAILURES if isinstance(error, kind)), EndName.FAILED)


def gate_name(gate: GateResult | None) -> EndName:
    """The name of a flow run's end with this outcome of its gate."""
    if gate is None:
        return EndName.COMPLETED
    if gate.entry:
        return EndName.PROMOTED
    if gate.approval:
        return EndName.COMPLETED if gate.approval.is_approved else EndName.REJECTED
    asks = gate.decision.outcome == Outcome.ASK
    return EndName.AWAITS_APPROVAL if asks else EndName.REFUSED


def nothing_begun(error: NothingBegunError) -> State[Any]:
    """The end of a flow run that had nothing to train, or was to check a request only."""
    is_skipped = isinstance(error, UnchangedError)
    name = EndName.SKIPPED if is_skipped else EndName.COMPLETED
    return Completed(name=name, message=str(error))


def naming_its_end(function: Callable[P, R]) -> Callable[P, R]:
    """Give the flow run of a function a last state whose name and message say how it ended.

    Prefect makes a returned state the flow run's own; its `result` is what the function returned,
    or raises what it raised.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> Any:
        try:
            result = function(*args, **kwargs)
        except StoppedError:
            raise
        except EvertrainError as error:
            return Failed(name=failure_name(error), message=str(error), data=error)
        if not isinstance(result, Report):
            return result
        if result.best:
            best = f"{result.best.name} is the best checkpoint of run {result.run}"
        else:
            best = f"run {result.run} reported no checkpoint"
        message = result.gate.summary if result.gate else best
        return Completed(name=gate_name(result.gate), message=message, data=result)

    # Prefect looks up the names of annotations in the module of the function that it is given.
    run.__signature__ = inspect.signature(function, eval_str=True)  # type: ignore[attr-defined]
    return run
