"""One attempt on Ray Train: it runs in a thread, and its error says what may follow."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor

import ray
from ray.exceptions import RayError
from ray.train import TrainingFailedError, WorkerGroupError

from train_core.config import LOCAL, TrainConfig
from train_core.engine.cluster.resources import remove_placement_groups
from train_core.engine.distributed.rendezvous import LOOPBACK
from train_core.engine.ray_train.seam import ABORT, RayTrainError
from train_core.engine.ray_train.task import FunctionTask, TrainingEnds
from train_core.engine.ray_train.trainer import make_ready, new_trainer
from train_core.engine.training.rank import follows_from_another_end
from train_core.errors import EvertrainError, StageError, UserCodeError
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter

__all__ = ["ABORT", "cause_of", "driver_host", "start_fit"]


def driver_host(config: TrainConfig) -> str:
    """The address of this machine at which workers reach the driver's store."""
    if config.ray_address == LOCAL:
        return LOOPBACK
    return str(ray.util.get_node_ip_address())


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
    RunWriter(RunFolder(task.storage, task.run), task.attempt).delete_ray_snapshot()
    try:
        make_ready(new_trainer(task.config), task).fit()
    except (TrainingFailedError, RayTrainError) as error:
        raise cause_of(error) from error
    except RayError as error:
        # Ray Train's controller died. Its workers end with it, and nobody gives back what they
        # reserve: its own cleaner needs Ray's dashboard.
        remove_placement_groups()
        raise cause_of(error) from error


def cause_of(error: Exception) -> BaseException:
    """What ended an attempt: an error of evertrain's, TrainingEnds, or ConnectionError.

    An error of the training function is a UserCodeError.
    """
    if not isinstance(error, WorkerGroupError):
        return ConnectionError(f"Ray Train failed: {_in_one_line(error)}")
    failures: Mapping[int, BaseException] = error.worker_failures
    rank = min(failures, key=lambda one: (_distance_from_cause(failures[one]), one))
    cause = failures[rank]
    if isinstance(cause, (TrainingEnds, ConnectionError)):
        return cause
    if isinstance(cause, EvertrainError) and not isinstance(cause, StageError):
        return cause
    if _is_death(cause):
        return ConnectionError(f"rank {rank} died: {_in_one_line(cause)}")
    if follows_from_another_end(cause):
        return ConnectionError(f"rank {rank}: {_in_one_line(cause)}")
    summary = f"rank {rank}: {type(cause).__name__}: {cause}"
    return UserCodeError("train", summary, str(error))


def _distance_from_cause(error: BaseException) -> int:
    """How far an error is from being the one that the others followed from."""
    if _is_death(error):
        return 0
    if isinstance(error, EvertrainError) and not isinstance(error, StageError):
        return 1
    if follows_from_another_end(error) or isinstance(error, TrainingEnds):
        return 3
    return 2


def _is_death(error: BaseException) -> bool:
    # What a function raised is of another type; these are about a process, a node or Ray.
    return isinstance(error, (RayTrainError, RayError))


def _in_one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(dict.fromkeys([*lines[:1], *lines[-1:]]))}"
