"""Which failures Prefect retries: decided here, for every task.

The driver restarts a training whose workers died, up to a limit, and then gives up. Prefect retries
the other failures of the infrastructure: those of a stage, a driver process or a storage. It does
not retry what would fail again: bad input, a bug of the workload, a diverged loss, and a run that
another process drives.
"""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypedDict, TypeVar, cast

from prefect.states import Cancelled

from evertrain_tasks.timing import TIMING
from train_core.errors import (
    GaveUpError,
    StageError,
    StoppedError,
    StorageError,
    UnsavedError,
    UserCodeError,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from prefect.client.schemas.objects import State, TaskRun
    from prefect.tasks import Task


P = ParamSpec("P")
R = TypeVar("R")


def cancelled_if_stopped(function: Callable[P, R]) -> Callable[P, R]:
    """Make a function a task's that is cancelled, and not failed, when its run is stopped.

    Prefect makes a returned state the task's own; the future's `result` raises `CancelledRun`.
    """

    @wraps(function)
    def run(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except StoppedError as error:
            return cast("R", Cancelled(message=str(error)))

    return run


def is_transient(error: BaseException) -> bool:
    """Whether the same call may succeed when it is tried again."""
    is_final = isinstance(error, (UserCodeError, GaveUpError, UnsavedError))
    return isinstance(error, (StageError, StorageError)) and not is_final


def may_retry(_task: Task[..., Any], _run: TaskRun, state: State[Any]) -> bool:
    """Prefect's `retry_condition_fn`."""
    error = state.data
    return isinstance(error, Exception) and is_transient(error)


class TaskOptions(TypedDict):
    """The options that every task has."""

    retries: int
    retry_delay_seconds: float
    retry_condition_fn: Callable[[Task[..., Any], TaskRun, State[Any]], bool]
    persist_result: bool
    result_serializer: str


# Every stage is idempotent and its outcome is in the run folder, so Prefect keeps no copy of
# results that it could take for the truth; the serializer rules out pickle where it must.
OPTIONS = TaskOptions(
    retries=1,
    retry_delay_seconds=TIMING.retry_delay_s,
    retry_condition_fn=may_retry,
    persist_result=False,
    result_serializer="json",
)
