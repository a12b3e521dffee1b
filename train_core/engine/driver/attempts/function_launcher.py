"""Attempts of a training function, which run on Ray Train."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from functools import partial

from train_core.engine.data.recorded import with_login
from train_core.engine.distributed.rendezvous import RendezvousStore
from train_core.engine.distributed.stop_source import post_stop
from train_core.engine.driver.attempts.supervisor import Attempt, AttemptOutcome
from train_core.engine.driver.timing import TIMING, Timing
from train_core.engine.ray_train.attempt import ABORT, driver_host, start_fit
from train_core.engine.ray_train.task import DamagedFolderError, FunctionTask, TrainingEnds
from train_core.errors import EvertrainError, StorageError, UserCodeError
from train_core.policy.restarts import Asked
from train_core.storage.records.names import CheckpointName
from train_core.storage.run_writer import quarantine

_log = logging.getLogger("train_core.driver")


class FunctionLauncher:
    """Runs each attempt as one `fit` of Ray Train, whose workers report into the run folder."""

    def __init__(self, timing: Timing = TIMING) -> None:
        self._timing = timing

    def run(self, attempt: Attempt) -> AttemptOutcome:
        """Run the function on all workers until it has ended."""
        attempt.check_stop()
        store = RendezvousStore(driver_host(attempt.config))
        task = _task(attempt, store)
        attempt.requests.send_by(partial(post_stop, store, task.group))
        fitted = start_fit(task)
        try:
            self._wait(fitted, attempt, partial(store.post, task.group, ABORT, "true"))
            fitted.result()
            return AttemptOutcome()
        except UserCodeError as error:
            return AttemptOutcome(error, is_raised=True)
        except DamagedFolderError as error:
            if name := CheckpointName.parse(error.checkpoint):
                quarantine(attempt.folder, name, error.fault)
            return AttemptOutcome(error, is_lost=True)
        except TrainingEnds as error:
            return AttemptOutcome(ConnectionError(f"it was asked to end: {error}"), is_lost=True)
        except (ConnectionError, StorageError) as error:
            return AttemptOutcome(error, is_lost=True)
        except EvertrainError as error:
            return AttemptOutcome(error)

    def _wait(self, fitted: Future[None], attempt: Attempt, abort: Callable[[], None]) -> None:
        """Wait for the end; a function that does not come to a report in time is ended."""
        end_at = None
        while not wait([fitted], self._timing.stop_poll_s).done:
            if attempt.requests.asked is Asked.NOTHING:
                continue
            end_at = end_at or time.monotonic() + attempt.config.grace_s
            if time.monotonic() > end_at:
                _log.warning(
                    "the training function did not report within grace_s (%g s), and is ended: it "
                    "goes on from its last checkpoint",
                    attempt.config.grace_s,
                )
                abort()
                end_at = float("inf")


def _task(attempt: Attempt, store: RendezvousStore) -> FunctionTask:
    folder = attempt.folder
    newest, start = folder.newest(), folder.newest_reported()
    host, port = store.address
    origin = None if start else folder.record().origin
    return FunctionTask(
        url=folder.url,
        attempt=attempt.number,
        config=attempt.config,
        host=host,
        port=port,
        newest=str(newest.name) if newest else None,
        start=str(start.name) if start else None,
        origin=with_login(origin, attempt.config, folder.storage) if origin else None,
    )
