"""Attempts of a training function: each is one `fit` of Ray Train, and its error says what follows.

`FunctionLauncher` runs in a thread of the driver; `fit` runs in another one.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial

from ray.exceptions import OutOfMemoryError, RayActorError, RayError
from ray.train import WorkerGroupError

from train_core.cluster.outcomes import out_of_memory
from train_core.cluster.resources import remove_placement_groups
from train_core.cluster.runtime import driver_host
from train_core.cluster.scaling import ClusterWatch
from train_core.config import LOCAL
from train_core.driver.attempts.supervisor import Attempt, AttemptOutcome
from train_core.errors import EvertrainError, FencedError, StorageError, UserCodeError
from train_core.functions.init_folder import pinned_origin
from train_core.functions.ray_private_hooks import RayTrainError, failure_of_worker
from train_core.functions.reports.channel import DriverLostError
from train_core.functions.reports.committer import commit_reports, uncovered_entries
from train_core.functions.task import ABORT, DamagedFolderError, FunctionTask, TrainingEnds
from train_core.functions.trainer import make_ready, new_trainer
from train_core.policy.restarts import Ended
from train_core.policy.stop_reasons import StopReason
from train_core.rank.data.recorded_workload import with_login
from train_core.rank.distributed.group import follows_from_another_end
from train_core.rank.distributed.pace import Pace
from train_core.rank.distributed.rendezvous import RendezvousStore
from train_core.rank.distributed.stop_requests import post_stop, ranks_that_leave
from train_core.storage.objects.retry_policy import SHORT
from train_core.storage.records.journal import Entry
from train_core.storage.records.names import CheckpointName
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, quarantine
from train_core.timing import TIMING, Timing

_OF_REPORTS = (TrainingEnds, FencedError, StorageError, DamagedFolderError, DriverLostError)
"""What a report, or `get_checkpoint`, raises of its own."""
_SMALLER = (
    "smaller batches in the function, or larger nodes; or let each worker reserve more of a node "
    "(cpus_per_worker, resources_per_worker)"
)
_log = logging.getLogger("train_core.driver")


class FunctionLauncher:
    """Runs each attempt as one `fit` of Ray Train, whose workers report into the run folder.

    `job`: the Ray job that runs this driver; empty on one machine. `pace` is that of who
    follows it.
    """

    def __init__(self, timing: Timing = TIMING, job: str = "", pace: Pace | None = None) -> None:
        self._timing, self._job, self._pace = timing, job, pace
        self._read: Callable[[str], str | None] = lambda _: None
        """Reads a key of the newest attempt in the driver's store."""

    def uncovered(self, after: int) -> list[Entry]:
        """What the newest attempt reported after the report `after`, and no commit will cover soon.

        A report with a folder is none before it is committed.
        """
        try:
            return list(uncovered_entries(self._read, after, without_folder=True))
        except ConnectionError:
            # The attempt is over, and its store is closed.
            return []

    def run(self, attempt: Attempt) -> AttemptOutcome:
        """Run the function on all workers until it has ended."""
        attempt.check_stop()
        store = RendezvousStore(driver_host(attempt.config))
        task = _task(attempt, store, self._timing)
        attempt.requests.send_by(partial(post_stop, store, task.group))
        if self._pace is not None:
            self._pace.post_to(store, task.group)
        self._read = partial(store.read, task.group)
        keep = partial(_keep_metrics, attempt.folder, task, store, time.monotonic())
        with ExitStack() as stack:
            if task.origin:
                stack.enter_context(pinned_origin(task.origin, self._job))
            stack.enter_context(self._watching(attempt))
            fitted = _start_fit(task)
            self._wait(fitted, attempt, store, task.group)
        try:
            fitted.result()
            return AttemptOutcome()
        except UserCodeError as error:
            return AttemptOutcome(Ended.RAISED, error, keep_metrics=keep)
        except DamagedFolderError as error:
            if name := CheckpointName.parse(error.checkpoint):
                quarantine(attempt.folder, name, error.fault)
            return AttemptOutcome(Ended.LOST, error, keep_metrics=keep)
        except TrainingEnds:
            return AttemptOutcome(Ended.AS_ASKED, keep_metrics=keep)
        except (ConnectionError, StorageError) as error:
            return AttemptOutcome(Ended.LOST, error, keep_metrics=keep)
        except EvertrainError as error:
            return AttemptOutcome(Ended.FAILED, error, keep_metrics=keep)

    def _watching(self, attempt: Attempt) -> AbstractContextManager[None]:
        """Watch, for a block, whether a node of the cluster on which a worker runs is drained."""
        config = attempt.config
        if config.ray_address == LOCAL:
            return nullcontext()
        move, timing = attempt.requests.ask_to_move, self._timing.cluster
        return ClusterWatch(move, config, config.num_workers, timing).watching()

    def _wait(
        self, fitted: Future[None], attempt: Attempt, store: RendezvousStore, group: str
    ) -> None:
        """Wait for the end, and end a function that is asked to end and does not report in time.

        A worker that got SIGTERM has the attempt end after the report under way.
        """
        is_aborted = False
        while not wait([fitted], self._timing.stop_poll_s).done:
            if not attempt.requests.is_asked:
                _ask_for_terminated(attempt, store, group)
            if not is_aborted and attempt.requests.is_older_than(attempt.config.grace_s):
                _log.warning(
                    "the training function did not report within grace_s (%g s), and is ended: it "
                    "goes on from its last checkpoint",
                    attempt.config.grace_s,
                )
                store.post(group, ABORT, "true")
                is_aborted = True


def _ask_for_terminated(attempt: Attempt, store: RendezvousStore, group: str) -> None:
    """Ask the attempt to end for another one if a worker got SIGTERM."""
    if terminated := ranks_that_leave(store, group, attempt.config.num_workers):
        reason = f"rank {min(terminated)} got SIGTERM"
        _log.warning(
            "%s: the attempt ends after the report under way, or grace_s (%g s) later, and another "
            "one goes on from it",
            reason,
            attempt.config.grace_s,
        )
        attempt.requests.ask_to_move(reason)


def _task(attempt: Attempt, store: RendezvousStore, timing: Timing) -> FunctionTask:
    folder = attempt.folder
    start = folder.newest_reported()
    host, port = store.address
    origin = None if start else folder.record().origin
    return FunctionTask(
        url=folder.url,
        attempt=attempt.number,
        config=attempt.config,
        host=host,
        port=port,
        start=str(start.name) if start else None,
        origin=with_login(origin, attempt.config, folder.storage) if origin else None,
        timing=timing.functions,
    )


def _keep_metrics(
    folder: RunFolder,
    task: FunctionTask,
    store: RendezvousStore,
    began_at: float,
    attempt: int,
    why: StopReason,
) -> None:
    """Commit what the function reported after its newest folder, without a folder.

    The next attempt, if somebody resumes the run, begins with that folder and reports it again. It
    commits at a later step, or at this one in a later attempt, so this commit is superseded then.
    """
    folder = folder.with_retries(SHORT)
    try:
        newest = folder.newest_reported()
        step = newest.step if newest else 0
        entries = list(uncovered_entries(partial(store.read, task.group), after=step))
        if not entries:
            return
        elapsed_s = time.monotonic() - began_at
        if task.start:
            elapsed_s += folder.find(task.start).manifest.elapsed_s
        writer = RunWriter(folder, attempt)
        commit_reports(writer, newest, step + 1, entries, why, elapsed_s)
    except (EvertrainError, OSError) as error:
        # Nobody waits for it, and why the training ended says more.
        _log.warning("the metrics of the last reports are not kept: %s", error)


def _start_fit(task: FunctionTask) -> Future[None]:
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
    ResourceError where Ray's memory monitor ended a process, and ConnectionError where one died
    otherwise; UserCodeError for whatever else the function raised.
    """
    if not isinstance(error, WorkerGroupError):
        return ConnectionError(f"Ray Train failed: {_in_one_line(error)}")
    failures: Mapping[int, BaseException] = error.worker_failures
    rank = min(failures, key=lambda one: (_distance_from_cause(failures[one]), one))
    cause = failures[rank]
    if isinstance(killed := failure_of_worker(cause), OutOfMemoryError):
        return out_of_memory(f"rank {rank}", killed, _SMALLER)
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
    if isinstance(failure_of_worker(error), OutOfMemoryError):
        return 0
    if _is_death(error):
        return 1
    if isinstance(error, _OF_REPORTS):
        return 2
    return 4 if _follows(error) else 3


def _follows(error: BaseException) -> bool:
    # A builtin ConnectionError is the function's own: what breaks in torch has other types.
    return follows_from_another_end(error) and not isinstance(error, ConnectionError)


def _is_death(error: BaseException) -> bool:
    # What a task of the function raised is a RayTaskError: these are about a process or a node.
    return isinstance(error, (RayTrainError, RayActorError))


def _in_one_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {' '.join(dict.fromkeys([*lines[:1], *lines[-1:]]))}"
