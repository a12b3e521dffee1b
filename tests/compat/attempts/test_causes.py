"""What ended an attempt, told from the errors of its workers."""

from __future__ import annotations

import pytest
import torch.distributed as dist
from ray.exceptions import ActorDiedError, OutOfMemoryError, RayTaskError
from ray.train import ControllerError, WorkerGroupError
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError

from train_core.errors import (
    CheckpointError,
    FencedError,
    ResourceError,
    StorageError,
    UserCodeError,
)
from train_core.functions.launcher import cause_of
from train_core.functions.reports.channel import DriverLostError
from train_core.functions.task import DamagedFolderError, TrainingEnds

DEATH = WorkerHealthCheckFailedError("the worker failed", ActorDiedError())
MEMORY = WorkerHealthCheckFailedError(
    "the worker failed", OutOfMemoryError("1 worker(s) were killed\nand forty lines more")
)
GLOO = RuntimeError("[../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed")
OF_A_TASK = RayTaskError("task", "traceback", ValueError("in a task"))


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ({0: ValueError("a bug")}, UserCodeError),
        ({0: OF_A_TASK}, UserCodeError),
        # A bug of the function, and no damage to this run.
        ({0: CheckpointError("of another run")}, UserCodeError),
        ({0: ConnectionResetError("of a database")}, UserCodeError),
        ({0: DamagedFolderError("step-00000001-a0001", "is cut")}, DamagedFolderError),
        ({0: FencedError(1, 2)}, FencedError),
        ({0: StorageError("away")}, StorageError),
        ({0: DriverLostError("gone")}, DriverLostError),
        ({0: GLOO}, ConnectionError),
        ({0: dist.DistNetworkError("reset")}, ConnectionError),
        ({1: DEATH}, ConnectionError),
        # What the others followed from counts.
        ({0: GLOO, 1: ValueError("a bug")}, UserCodeError),
        ({0: ValueError("peer closed"), 1: DEATH}, ConnectionError),
        ({0: DEATH, 1: MEMORY}, ResourceError),
        ({0: TrainingEnds("late"), 1: RuntimeError("peer closed")}, TrainingEnds),
        ({0: ValueError("a bug"), 1: StorageError("away")}, StorageError),
    ],
)
def test_the_cause_of_an_attempts_end(
    failures: dict[int, Exception], expected: type[BaseException]
) -> None:
    cause = cause_of(WorkerGroupError("failed", failures))
    assert isinstance(cause, expected)


def test_who_took_too_much_memory_gets_the_advice_of_the_pools_workers() -> None:
    cause = cause_of(WorkerGroupError("failed", {1: MEMORY}))
    assert str(cause).startswith(
        "rank 1 was ended by Ray's memory monitor: 1 worker(s) were killed. "
        "Take fewer workers on a node, smaller batches in the function"
    )


def test_the_rank_and_the_place_of_a_bug_are_shown() -> None:
    cause = cause_of(WorkerGroupError("Traceback of rank 3", {3: KeyError("loss")}))
    assert isinstance(cause, UserCodeError)
    assert "rank 3: KeyError: 'loss'" in str(cause)
    assert "Traceback of rank 3" in cause.traceback


TWO_RANKS = """Training failed due to worker errors:
[Rank 1 Error Snippet]:
  File "/home/ann/table.py", line 50, in train
    loss.backward()
RuntimeError: gloo: Connection closed by peer
[Rank 0,2 Error Snippet]:
  File "/home/ann/table.py", line 41, in train
    config["lr"]
KeyError: 'lr'
[Rank 10 Error Snippet]:
  File "/home/ann/table.py", line 60, in train
"""


@pytest.mark.parametrize(("rank", "line"), [(0, " (table.py, line 41, in train)"), (3, "")])
def test_the_line_is_that_of_the_rank_whose_error_it_is(rank: int, line: str) -> None:
    cause = cause_of(WorkerGroupError(TWO_RANKS, {rank: KeyError("lr")}))
    assert str(cause) == f"train: rank {rank}: KeyError: 'lr'{line}"


@pytest.mark.parametrize("error", [ControllerError(ValueError("no room")), ActorDiedError()])
def test_what_is_rays_may_pass(error: Exception) -> None:
    assert isinstance(cause_of(error), ConnectionError)
