"""Attempts of a training function, which run on Ray Train."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import AbstractContextManager, ExitStack, nullcontext
from functools import partial

from train_core.cluster.runtime import driver_host
from train_core.cluster.scaling import ClusterWatch
from train_core.config import LOCAL
from train_core.driver.attempts.supervisor import Attempt, AttemptOutcome
from train_core.errors import EvertrainError, StorageError, UserCodeError
from train_core.functions.attempt import start_fit
from train_core.functions.init_folder import pinned_origin
from train_core.functions.reports.committer import commit_reports, uncovered_entries
from train_core.functions.task import ABORT, DamagedFolderError, FunctionTask, TrainingEnds
from train_core.policy.restarts import Ended
from train_core.policy.stop_reasons import StopReason
from train_core.rank.data.recorded_workload import with_login
from train_core.rank.distributed.rendezvous import RendezvousStore
from train_core.rank.distributed.stop_requests import post_stop
from train_core.storage.objects.retry_policy import SHORT
from train_core.storage.records.names import CheckpointName
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, quarantine
from train_core.timing import TIMING, Timing

_log = logging.getLogger("train_core.driver")


class FunctionLauncher:
    """Runs each attempt as one `fit` of Ray Train, whose workers report into the run folder.

    `job` is the job of a cluster that does it, if one does.
    """

    def __init__(self, timing: Timing = TIMING, job: str = "") -> None:
        self._timing, self._job = timing, job

    def run(self, attempt: Attempt) -> AttemptOutcome:
        """Run the function on all workers until it has ended."""
        attempt.check_stop()
        store = RendezvousStore(driver_host(attempt.config))
        task = _task(attempt, store, self._timing)
        attempt.requests.send_by(partial(post_stop, store, task.group))
        keep = partial(_keep_metrics, attempt.folder, task, store, time.monotonic())
        with ExitStack() as stack:
            if task.origin:
                stack.enter_context(pinned_origin(task.origin, self._job))
            stack.enter_context(self._watching(attempt))
            fitted = start_fit(task)
            is_aborted = self._wait(fitted, attempt, partial(store.post, task.group, ABORT, "true"))
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
            ended = Ended.AS_ASKED if is_aborted else Ended.LOST
            return AttemptOutcome(ended, error, keep_metrics=keep)
        except EvertrainError as error:
            return AttemptOutcome(Ended.FAILED, error, keep_metrics=keep)

    def _watching(self, attempt: Attempt) -> AbstractContextManager[None]:
        """Watch, for a block, whether a node of the cluster on which a worker runs is drained."""
        config = attempt.config
        if config.ray_address == LOCAL:
            return nullcontext()
        move, timing = attempt.requests.ask_to_move, self._timing.cluster
        return ClusterWatch(move, config, config.num_workers, timing).watching()

    def _wait(self, fitted: Future[None], attempt: Attempt, abort: Callable[[], None]) -> bool:
        """Wait for the end; whether a function that did not come to a report in time was ended."""
        is_aborted = False
        while not wait([fitted], self._timing.stop_poll_s).done:
            if not is_aborted and attempt.requests.is_older_than(attempt.config.grace_s):
                _log.warning(
                    "the training function did not report within grace_s (%g s), and is ended: it "
                    "goes on from its last checkpoint",
                    attempt.config.grace_s,
                )
                abort()
                is_aborted = True
        return is_aborted


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
