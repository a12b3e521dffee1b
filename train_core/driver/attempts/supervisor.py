"""The supervisor: trains a run to its end, by as many attempts as it takes.

It has the run's lease and carries out what follows the end of an attempt, which
`policy/restarts.py` decides. A launcher starts and watches the ranks of an
attempt.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, assert_never

from train_core.config import TrainConfig
from train_core.driver.attempts.orphan_deletion import OrphanDeletion
from train_core.errors import FencedError, GaveUpError, StoppedError, StorageError
from train_core.policy.restarts import (
    Asked,
    AttemptEnd,
    Decision,
    Ended,
    Next,
    after_attempt,
)
from train_core.policy.stop_reasons import StopReason
from train_core.rank.distributed.stop_requests import StopRequests
from train_core.storage.coordination import lease
from train_core.storage.coordination.lease import Lease
from train_core.storage.coordination.stop_request import StopRequest, stop_request
from train_core.storage.objects.retry_policy import SHORT
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.run_writer import fence_off_earlier_attempts
from train_core.storage.runs_of_storage import is_training_finished
from train_core.timing import TIMING, Timing

_log = logging.getLogger("train_core.driver")


@dataclass(frozen=True)
class Attempt:
    """One attempt, as the supervisor hands it to a launcher."""

    folder: RunFolder
    number: int
    config: TrainConfig
    requests: StopRequests
    """The requests to stop; the launcher sends them to the ranks."""
    check_stop: Callable[[], None]
    """Raises StoppedError if the attempt is to end before its ranks have started."""
    earlier: Future[Commit | None]
    """The newest commit of earlier attempts, once what they commit is ignored.

    While it is not known, the ranks may get ready, and no more. If it fails, so does the attempt.
    """


@dataclass(frozen=True)
class AttemptOutcome:
    """How an attempt ended."""

    ended: Ended = Ended.IN_ORDER
    error: Exception | None = None
    """What it ended with, unless in order."""
    given_up_at: int | None = None
    """The step of the newest commit, if the storage did not take the last one in time."""
    has_survivors: bool = False
    """Whether processes that lost another one wait for the next attempt."""
    kept_step: int = 0
    """The greatest step that they keep the state of."""
    keep_metrics: Callable[[int, StopReason], object] = lambda *_: None
    """Commits metrics that no checkpoint covers, in the name of the attempt of that number.

    It is called if no other attempt follows, which would measure them again.
    """


class Launcher(Protocol):
    """Runs the ranks of one attempt."""

    def run(self, attempt: Attempt) -> AttemptOutcome:
        """Run them until all have ended, and leave none behind."""


class Supervisor:
    """The attempts of one driver at one run."""

    def __init__(self, folder: RunFolder, held: Lease, timing: Timing = TIMING) -> None:
        self._folder, self._lease, self._timing = folder, held, timing
        self._grace_s = 0.0
        self._has_launched = False
        self._orphans = OrphanDeletion(folder, timing.orphans_after_s)
        self._earlier: Future[Commit | None] = Future()
        """What earlier attempts have committed, as `Attempt.earlier`."""
        self._requests: StopRequests | None = None
        """The requests to the attempt that runs, or ran last."""
        self._is_stopping = threading.Event()
        self._is_idle = threading.Event()
        self._is_idle.set()

    def train(self, config: TrainConfig, launcher: Launcher) -> Commit:
        """The last checkpoint, after as many attempts as it took.

        Raises StoppedError if the training was stopped by a request, GaveUpError if attempts die
        again and again, and the error of a rank that failed.
        """
        self._grace_s = config.grace_s
        self._is_idle.clear()
        try:
            return self._train(config, launcher)
        finally:
            self._is_idle.set()

    def _train(self, config: TrainConfig, launcher: Launcher) -> Commit:
        self._check_program()
        newest = self.newest()
        self._earlier = Future()
        self._earlier.set_result(newest)
        restarts, failures, is_done = 0, 0, is_training_finished(newest, config)
        reached = 0
        """The greatest step that any process had the state of as its attempt ended."""
        rules = replace(self._timing.restarts, max_failures=config.max_failures)
        outcome = AttemptOutcome()
        try:
            while not is_done:
                number = self.begin_attempt(is_awaited=outcome.has_survivors)
                outcome, asked = self._run(number, config, launcher)
                has_come_further = outcome.kept_step > reached
                before = newest
                if not has_come_further or asked is Asked.END:
                    newest = self._newest_after(outcome, asked, before)
                end = AttemptEnd(
                    outcome.ended,
                    asked,
                    has_saved=outcome.given_up_at is None,
                    has_stopped=_was_stopped(newest, number),
                    has_progress=has_come_further or newest != before,
                    has_finished=is_training_finished(newest, config),
                )
                reached = max(reached, outcome.kept_step)
                decision = after_attempt(end, restarts, rules, failures)
                self._carry_out(decision, outcome, newest)
                restarts, failures = decision.restarts, decision.failures
                is_done = decision.next is Next.DONE
        except Exception as error:
            is_stopped = isinstance(error, StoppedError)
            why = StopReason.REQUEST if is_stopped else StopReason.FAILURE
            # No attempt follows that would measure them again.
            outcome.keep_metrics(self._lease.attempt, why)
            raise
        self._orphans.finish(self._lease.attempt)
        assert newest is not None, "a training ends with a checkpoint"
        return newest

    def _run(
        self, number: int, config: TrainConfig, launcher: Launcher
    ) -> tuple[AttemptOutcome, Asked]:
        """Run the attempt; its outcome, and the newest request that it received."""
        # With a short budget: the next poll follows soon.
        source = partial(stop_request, self._folder.store.with_retries(SHORT), number)
        requests = StopRequests(source, self._timing.stop_poll_s)
        self._requests = requests

        def check_stop() -> None:
            if requests.asked is Asked.END:
                raise self._stopped()

        # IMPORTANT: after `_requests` is set. A stop that came before did not find it.
        self._check_program()
        requests.start()
        earlier = self._earlier
        with closing(requests), self._orphans.deleting(number, earlier):
            outcome = launcher.run(
                Attempt(self._folder, number, config, requests, check_stop, earlier)
            )
        earlier.result()
        return outcome, Asked.END if self._is_stopping.is_set() else requests.asked

    def _carry_out(
        self, decision: Decision, outcome: AttemptOutcome, newest: Commit | None
    ) -> None:
        """Wait before another attempt, or raise why there is none."""
        match decision.next:
            case Next.FAIL:
                assert outcome.error is not None
                raise outcome.error
            case Next.STOPPED:
                raise self._stopped_at(newest, outcome.given_up_at)
            case Next.GIVE_UP:
                message = (
                    f"gave up after {decision.restarts} tries without progress: {outcome.error}"
                )
                raise GaveUpError("train", message) from outcome.error
            case Next.RESTART:
                _log.warning("begins again: %s", outcome.error)
                self._is_stopping.wait(decision.pause_s)
            case Next.MOVE | Next.DONE:
                """Nothing keeps the next attempt, or the end."""
            case other:
                assert_never(other)

    def stop(self) -> None:
        """Begin no training, and let one that runs save and end.

        The training has `grace_s` for that. This needs no storage.
        """
        self._is_stopping.set()
        if self._is_idle.is_set():
            return
        # Between two attempts the training itself sees that it shall end.
        if self._requests is not None:
            self._requests.ask(StopRequest(reason="its program ends"))
        if not self._is_idle.wait(self._grace_s):
            _log.warning(
                "the training did not end within grace_s (%g s), and is killed: it goes on from "
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

    def newest(self) -> Commit | None:
        """The newest committed checkpoint."""
        return self._folder.newest()

    def begin_attempt(self, *, is_awaited: bool = False) -> int:
        """The number of the attempt to launch now.

        If it is awaited by processes, `Attempt.earlier` comes later, and what earlier attempts left
        is deleted while it trains, and after it.
        """
        self._check_program()
        held = self._lease
        # A retried stage needs a new attempt too: an attempt never writes a step twice.
        if self._has_launched:
            before = held.attempt
            held.advance()
            self._orphans.note()
            self._earlier = _in_thread(partial(self._fence_off, before))
            if not is_awaited:
                self._earlier.result()
                self._orphans.finish(held.attempt)
        self._has_launched = True
        return held.attempt

    def _fence_off(self, before: int) -> Commit | None:
        """Have what earlier attempts commit from now on ignored; the newest of what they have.

        Raises StoppedError as well: a request that came between two attempts is for this one.
        """
        newest = fence_off_earlier_attempts(self._folder, self._lease)
        self._lease.release_earlier()
        self._check_stop(before)
        return newest

    def _newest_after(
        self, outcome: AttemptOutcome, asked: Asked, before: Commit | None
    ) -> Commit | None:
        """The newest commit after an attempt.

        After a request to end, the storage has seconds to say it. Raises StoppedError if it does
        not, although the ranks have saved.
        """
        if outcome.given_up_at is not None or outcome.ended is Ended.FAILED:
            # The storage did not take a newer one, or the error is the training's in any case.
            return before
        if asked is not Asked.END:
            return self.newest()
        newest = self._newest_soon()
        if newest is None and outcome.ended is Ended.IN_ORDER:
            raise self._stopped_at(before)
        return newest or before

    def _newest_soon(self) -> Commit | None:
        """The newest commit; None also if the storage does not say within seconds."""
        try:
            return self._folder.with_retries(SHORT).newest()
        except StorageError as error:
            _log.debug("the newest checkpoint is not known: %s", error)
            return None

    def _check_stop(self, attempt: int) -> None:
        """Raise StoppedError if the attempt was requested to end, or this process is ending."""
        # Also before the storage is asked, which may be away.
        self._check_program()
        request = stop_request(self._folder.store, attempt)
        if request and not request.goes_on:
            raise self._stopped()
        self._check_program()

    def _check_program(self) -> None:
        """Raise StoppedError if `stop` was called."""
        if self._is_stopping.is_set():
            raise self._stopped()

    def _stopped(self) -> StoppedError:
        return self._stopped_at(self._newest_soon())

    def _stopped_at(self, newest: Commit | None, given_up_at: int | None = None) -> StoppedError:
        if given_up_at is not None:
            _log.warning(
                "the storage did not take a last checkpoint within grace_s (%g s): the training "
                "goes on from its last one",
                self._grace_s,
            )
        step = newest.step if newest else 0
        return StoppedError(self._folder.name, max(step, given_up_at or 0))


def _in_thread(call: Callable[[], Commit | None]) -> Future[Commit | None]:
    """What `call` will give, or raise; it runs in a thread that no process waits for at its end."""
    found: Future[Commit | None] = Future()

    def run() -> None:
        try:
            found.set_result(call())
        except Exception as error:  # noqa: BLE001 (who asks for the result gets it)
            found.set_exception(error)

    threading.Thread(target=run, name="fence", daemon=True).start()
    return found


def _was_stopped(newest: Commit | None, attempt: int) -> bool:
    """Whether it was saved by that attempt, not an earlier one, because of a request to stop."""
    if newest is None or newest.attempt != attempt:
        return False
    return newest.manifest.stopped_by == StopReason.REQUEST
