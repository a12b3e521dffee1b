"""The supervisor: trains a run to its end, by as many attempts as it takes.

It has the run's lease and decides what follows the end of an attempt. How an attempt's ranks are
started and watched is a launcher's business.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from train_core.config import TrainConfig
from train_core.errors import FencedError, GaveUpError, StoppedError, StorageError
from train_core.policy.stop_reasons import StopReason
from train_core.storage.cleanup.superseded import delete_orphans_of_the_dead
from train_core.storage.coordination import lease
from train_core.storage.coordination.lease import Lease
from train_core.storage.coordination.stop_request import ask_to_stop, stop_request
from train_core.storage.finished_runs import is_finished
from train_core.storage.objects.retries import SHORT
from train_core.storage.run_folder import Checkpoint, RunFolder
from train_core.storage.run_writer import RunWriter, next_attempt

MAX_RESTARTS = 3
"""A worker or Ray itself may die; the training is begun again so often without new progress."""
RESTART_PAUSE_S = 2.0
_log = logging.getLogger("train_core.driver")


@dataclass(frozen=True)
class Attempt:
    """What a launcher is asked to run."""

    folder: RunFolder
    number: int
    config: TrainConfig
    check_stop: Callable[[], None]
    """Raises StoppedError if somebody wants the attempt to end before it has begun."""


@dataclass(frozen=True)
class Outcome:
    """How an attempt ended."""

    error: Exception | None = None
    """None: all ranks came to their end."""
    is_lost: bool = False
    """A process or a connection died, so that another attempt may well succeed."""


class Launcher(Protocol):
    """Runs the ranks of one attempt."""

    def run(self, attempt: Attempt) -> Outcome:
        """Run them until all have ended, and leave none behind."""


class Supervisor:
    """The attempts of one driver at one run."""

    def __init__(self, folder: RunFolder, held: Lease) -> None:
        self._folder, self._lease = folder, held
        self._grace_s = 0.0
        self._has_launched = False
        self._is_stopping = threading.Event()
        self._is_idle = threading.Event()
        self._is_idle.set()

    def train(self, config: TrainConfig, launcher: Launcher) -> Checkpoint:
        """The last checkpoint, after as many attempts as it took.

        Raises StoppedError if the training was asked to stop, and did; GaveUpError if attempts
        die again and again; what a rank raised of its own.
        """
        self._grace_s = config.grace_s
        self._is_idle.clear()
        try:
            return self._train(config, launcher)
        finally:
            self._is_idle.set()

    def _train(self, config: TrainConfig, launcher: Launcher) -> Checkpoint:
        if self._is_stopping.is_set():
            raise self._stopped()
        newest = self.newest()
        restarts, is_done = 0, is_finished(newest, config)
        while not is_done:
            number = self.begin_attempt()
            if self._is_stopping.is_set():
                raise self._stopped()
            outcome = launcher.run(
                Attempt(self._folder, number, config, partial(self._check_stop, number))
            )
            if outcome.is_lost:
                assert outcome.error is not None
                self._check_stop(number)
                restarts = restarts + 1 if self.newest() == newest else 1
                self._pause_before(restarts, outcome.error)
            elif outcome.error is not None:
                raise outcome.error
            else:
                restarts, is_done = 0, not self._shall_move(number)
            newest = self.newest()
        assert newest is not None, "a training ends with a checkpoint"
        return newest

    def stop(self) -> None:
        """Begin no training, and let one that runs save and end, in its `grace_s` at most."""
        self._is_stopping.set()
        if self._is_idle.is_set():
            return
        # An end that was asked for is not kept waiting by a storage that is away.
        store = self._folder.store.with_retries(SHORT)
        try:
            # Between two attempts the training itself sees that it shall end.
            ask_to_stop(store, self._lease.attempt, "its program ends")
        except StorageError as error:
            _log.warning("the training cannot be asked to save, and is ended: %s", error)
            return
        if not self._is_idle.wait(self._grace_s):
            _log.warning(
                "the training did not save within grace_s (%g s), and is ended: it goes on from "
                "its last checkpoint",
                self._grace_s,
            )

    def check(self) -> None:
        """Raise FencedError if a newer attempt has the run, and StoppedError if it shall end."""
        lease.check(self._folder.store, self._lease.attempt)
        self._check_stop(self._lease.attempt)

    def is_replaced(self) -> bool:
        """Whether a newer attempt has the run, as far as can be told."""
        try:
            lease.check(self._folder.store.with_retries(SHORT), self._lease.attempt)
        except FencedError:
            return True
        except StorageError:
            return False
        return False

    def newest(self) -> Checkpoint | None:
        """The newest committed checkpoint."""
        return max(self._folder.checkpoints(), key=lambda c: c.name, default=None)

    def begin_attempt(self) -> int:
        """The attempt to launch now: whatever one before still does no longer counts."""
        held = self._lease
        # Also when a stage is tried again: steps of an attempt are never written twice.
        if self._has_launched:
            before = held.attempt
            # Who asked while nothing ran meant this one.
            self._check_stop(before)
            next_attempt(self._folder, held)
            delete_orphans_of_the_dead(RunWriter(self._folder, held.attempt))
            self._check_stop(before)
        self._has_launched = True
        return held.attempt

    def _pause_before(self, restarts: int, error: Exception) -> None:
        """Wait before another attempt. Raises GaveUpError if there were too many."""
        if restarts > MAX_RESTARTS:
            said = f"gave up after {restarts} tries without a new checkpoint: {error}"
            raise GaveUpError("train", said) from error
        _log.warning("begins again from the newest checkpoint: %s", error)
        # At once the first time; what fails again may need a while.
        self._is_stopping.wait(RESTART_PAUSE_S * (2 ** (restarts - 1) - 1))

    def _shall_move(self, attempt: int) -> bool:
        """Whether the attempt ended only because another one is to begin on other workers."""
        request, newest = stop_request(self._folder.store, attempt), self.newest()
        return (
            request is not None
            and request.goes_on
            and newest is not None
            and newest.manifest.stopped_by == StopReason.REQUEST
            and not self._is_stopping.is_set()
        )

    def _check_stop(self, attempt: int) -> None:
        """Raise StoppedError if somebody wants the attempt, or this process, to end."""
        request = stop_request(self._folder.store, attempt)
        if self._is_stopping.is_set() or (request and not request.goes_on):
            raise self._stopped()

    def _stopped(self) -> StoppedError:
        newest = self.newest()
        return StoppedError(self._folder.name, newest.step if newest else 0)
