"""One attempt on Ray Train: it runs in a thread, and its error says what may follow."""

from __future__ import annotations

import re
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

from ray.exceptions import RayActorError, RayError
from ray.train import WorkerGroupError

from train_core.cluster.resources import remove_placement_groups
from train_core.errors import FencedError, StorageError, UserCodeError
from train_core.functions.ray_private_hooks import RayTrainError
from train_core.functions.reports.channel import DriverLostError
from train_core.functions.task import DamagedFolderError, FunctionTask, TrainingEnds
from train_core.functions.trainer import make_ready, new_trainer
from train_core.rank.training import follows_from_another_end
from train_core.storage.run_writer import RunWriter

_OF_REPORTS = (TrainingEnds, FencedError, StorageError, DamagedFolderError, DriverLostError)
"""What a report, or `get_checkpoint`, raises of its own."""


def start_fit(task: FunctionTask) -> Future[None]:
    """Run the trainer in a thread of its own, which Ray leaves its signals alone in.

    The future raises what `cause_of` gives.
    """
    thread = ThreadPoolExecutor(1, "fit")
    try:
        return thread.submit(_fit, task)
    finally:
        thread.shutdown(wait=False)


def _fit(task: FunctionTask) -> None:
    RunWriter(task.folder, task.attempt).delete_ray_snapshot()
    try:
        make_ready(new_trainer(task.config), task).fit()
    except (RayTrainError, RayError) as error:
        # Where the workers did not begin, or Ray Train's controller died, Ray keeps what they have
        # reserved until the job ends, and the next attempt would wait for it. Where the function
        # failed, Ray has given it back, and what is reserved is a validation function's.
        if not isinstance(error, WorkerGroupError):
            remove_placement_groups()
        raise cause_of(error) from error


def cause_of(error: Exception) -> BaseException:
    """What ended an attempt, as the launcher tells apart.

    TrainingEnds after a request; FencedError, StorageError and DamagedFolderError of a report;
    ConnectionError where a process died; UserCodeError for whatever else the function raised.
    """
    if not isinstance(error, WorkerGroupError):
        return ConnectionError(f"Ray Train failed: {_in_one_line(error)}")
    failures: Mapping[int, BaseException] = error.worker_failures
    rank = min(failures, key=lambda one: (_distance_from_cause(failures[one]), one))
    cause = failures[rank]
    if isinstance(cause, _OF_REPORTS):
        return cause
    if _is_death(cause):
        return ConnectionError(f"rank {rank} died: {_in_one_line(cause)}")
    if _follows(cause):
        return ConnectionError(f"rank {rank}: {_in_one_line(cause)}")
    whole = str(error)
    return UserCodeError.raised_by("train", f"rank {rank}", cause, whole, _part_of(rank, whole))


def _part_of(rank: int, traceback: str) -> str:
    """What Ray's text of an error, which has all ranks', has of this rank; empty if it has none."""
    for part in re.split(r"(?m)^(?=\[Rank )", traceback):
        ranks = re.match(r"\[Rank ([\d,]+)", part)
        if ranks and str(rank) in ranks[1].split(","):
            return part
    return ""


def _distance_from_cause(error: BaseException) -> int:
    """How far an error is from being the one that the others followed from."""
    if _is_death(error):
        return 0
    if isinstance(error, _OF_REPORTS):
        return 1
    return 3 if _follows(error) else 2


def _follows(error: BaseException) -> bool:
    # A builtin ConnectionError is the function's own: what breaks in torch has other types.
    return follows_from_another_end(error) and not isinstance(error, ConnectionError)


def _is_death(error: BaseException) -> bool:
    # What a task of the function raised is a RayTaskError: these are about a process or a node.
    return isinstance(error, (RayTrainError, RayActorError))


def _in_one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(dict.fromkeys([*lines[:1], *lines[-1:]]))}"
