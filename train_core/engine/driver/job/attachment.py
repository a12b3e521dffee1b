"""A caller's side of a job: it sends heartbeats, prints the log, and waits for answers."""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import Any

from train_core.described_errors import rebuild
from train_core.engine.cluster.jobs import RayJobsClient
from train_core.engine.driver.server import PREPARE
from train_core.engine.driver.timing import Timing
from train_core.errors import JobEndedError, StorageError
from train_core.requests import Request
from train_core.storage.coordination.heartbeat import HeartbeatObserver
from train_core.storage.coordination.job_mailbox import THE_JOB, Answer, Mailbox

_log = logging.getLogger("train_core.driver")


class Attachment:
    """One caller's side of a job's mailbox, from its first call until it detaches."""

    def __init__(
        self, mailbox: Mailbox, jobs: RayJobsClient, request: Request, timing: Timing
    ) -> None:
        """Write the first call, and send heartbeats from now on."""
        self.mailbox = mailbox
        self._jobs = jobs
        self._timing = timing
        self._is_detached = threading.Event()
        self._log: threading.Thread | None = None
        self._heartbeat = mailbox.heartbeat_sender()
        mailbox.send_heartbeat()
        self.first = mailbox.ask(PREPARE, {"request": request.model_dump(mode="json")})
        """The name of the first call."""
        self._heartbeat.start()

    def print_log(self) -> None:
        """Print what the job prints, in a thread, until this caller detaches."""
        follow = self._jobs.follow
        self._log = threading.Thread(
            target=follow, args=(self.mailbox.job, _print, self._is_detached), daemon=True
        )
        self._log.start()

    def result(self, stage: str, name: str) -> Any:
        """The result of the call of that name.

        Raises what the stage raised, and JobEndedError if the job died.
        """
        answer = self._answer(stage, name)
        if answer.error is not None:
            raise rebuild(answer.error)
        return answer.result

    def detach(self) -> None:
        """Send no more heartbeats, and print the last lines of the log."""
        self._is_detached.set()
        deadline = time.monotonic() + self._timing.last_lines_s
        self._heartbeat.stop(self._timing.last_lines_s)
        if self._log is not None:
            self._log.join(max(deadline - time.monotonic(), 0))

    def cancel(self) -> None:
        """Detach from a job that nobody shall begin, and delete what was written for it."""
        self.detach()
        self.mailbox.detach(self.first)

    def _answer(self, stage: str, name: str) -> Answer:
        job, has_ended = self.mailbox.job, False
        asked_at = polled_at = time.monotonic()
        heartbeat = HeartbeatObserver(0, asked_at)
        while True:
            try:
                if answer := self.mailbox.answer_to(name):
                    return answer
                if has_ended:
                    self.mailbox.cancel(name)
                    raise JobEndedError(stage, self._jobs.end_of(job))
                if time.monotonic() - polled_at > self._timing.job_poll_interval_s:
                    # Its last answer may have come just before.
                    has_ended = self._has_ended(heartbeat)
                    polled_at = time.monotonic()
            except StorageError as error:
                if has_ended:
                    raise JobEndedError(stage, self._jobs.end_of(job)) from error
                _log.warning("it is unknown whether %s is done: %s", stage, error)
                # Its heartbeat cannot be read, but Ray may know.
                has_ended = bool(self._jobs.has_ended(job))
                heartbeat.restart(time.monotonic())
            time.sleep(self.mailbox.timing.pause_s(time.monotonic() - asked_at))

    def _has_ended(self, heartbeat: HeartbeatObserver[int]) -> bool:
        """Whether Ray says so, or says nothing while the job's heartbeat stands still for long."""
        ended = self._jobs.has_ended(self.mailbox.job)
        heartbeat.observe(self.mailbox.heartbeat_of(THE_JOB), time.monotonic())
        if ended is False:
            heartbeat.restart(time.monotonic())
        return bool(ended) or heartbeat.still_s(time.monotonic()) > self._timing.silent_s


def _print(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
