"""A caller's side of one job: it sends heartbeats, passes the log on, and waits for answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from train_core.client.carriers.ray_jobs import RayJobs
from train_core.errors import JobEndedError, StageError, StorageError
from train_core.requests import Request
from train_core.stages import PREPARE, Answer, ArgumentsT, ResultT, Stage
from train_core.storage.coordination.heartbeat import HeartbeatObserver
from train_core.storage.coordination.job_mailbox import THE_JOB, Mailbox
from train_core.storage.objects.store import Store
from train_core.text.log_lines import WARNING
from train_core.timing import Timing

Say = Callable[[str], None]
"""Takes a line of the log."""


class Attachment:
    """One caller's side of a job's mailbox, from its first call until it detaches."""

    def __init__(self, store: Store, job: str, jobs: RayJobs, say: Say, timing: Timing) -> None:
        self.mailbox = Mailbox(store, job, timing=timing.coordination)
        self.first = ""
        """The name of the first call."""
        self._jobs = jobs
        self._say = say
        self._timing = timing
        self._is_detached, self._is_abandoned = threading.Event(), threading.Event()
        self._log: threading.Thread | None = None
        self._heartbeat = self.mailbox.heartbeat_sender()

    def prepare(self, request: Request) -> None:
        """Write the first call, and send heartbeats from now on."""
        self.mailbox.send_heartbeat()
        asked = PREPARE.arguments(request=request)
        self.first = self.mailbox.ask(PREPARE.name, asked.model_dump(mode="json"))
        self._heartbeat.start()

    def follow_log(self) -> None:
        """Pass on what the job prints, in a thread, until this caller detaches."""
        self._log = threading.Thread(target=self._follow_log, daemon=True)
        self._log.start()

    def ask(self, stage: Stage[ArgumentsT, ResultT], arguments: ArgumentsT) -> ResultT:
        """The result of a stage. Raises what the stage raised, and as `result` does."""
        return self.result(stage, self.mailbox.ask(stage.name, arguments.model_dump(mode="json")))

    def result(self, stage: Stage[ArgumentsT, ResultT], name: str) -> ResultT:
        """The result of the call of that name.

        Raises what the stage raised, JobEndedError if the job died, and StageError once this is
        abandoned.
        """
        return self._answer(stage, name).unwrapped()

    def abandon(self) -> None:
        """Let nobody wait for an answer that is not there yet."""
        self._is_abandoned.set()

    def detach(self, *, waits: bool = True) -> None:
        """Send no more heartbeats, and follow the log no longer. It `waits` for the last lines."""
        deadline = time.monotonic() + (self._timing.callers.last_lines_s if waits else 0)
        self._heartbeat.stop(max(deadline - time.monotonic(), 0))
        if self._log is not None:
            self._log.join(max(deadline - time.monotonic(), 0))
        self._is_detached.set()

    def cancel(self) -> None:
        """Detach from a job that nobody shall begin, and delete what was written for it."""
        self.detach()
        self.mailbox.detach(self.first)

    def _answer(self, stage: Stage[ArgumentsT, ResultT], name: str) -> Answer[ResultT]:
        job, has_ended, is_last_look = self.mailbox.job, False, False
        asked_at = polled_at = time.monotonic()
        heartbeat = HeartbeatObserver(0, asked_at)
        while True:
            try:
                if answer := self.mailbox.answer_to(name, stage.answer):
                    return answer
                if has_ended:
                    self.mailbox.cancel(name)
                    raise JobEndedError(stage.name, self._jobs.end_of(job))
                if time.monotonic() - polled_at > self._timing.callers.job_poll_interval_s:
                    # Its last answer may have come just before.
                    has_ended = self._has_ended(heartbeat)
                    polled_at = time.monotonic()
            except StorageError as error:
                if has_ended:
                    raise JobEndedError(stage.name, self._jobs.end_of(job)) from error
                self._say(f"{WARNING}it is unknown whether {stage.name} is done: {error}")
                # Its heartbeat cannot be read, but Ray may know.
                has_ended = bool(self._jobs.has_ended(job))
                heartbeat.restart(time.monotonic())
            if is_last_look:
                raise StageError(stage.name, f"nobody waits for job {job} any more")
            pause_s = self.mailbox.timing.pause_s(time.monotonic() - asked_at)
            is_last_look = self._is_abandoned.wait(pause_s)

    def _has_ended(self, heartbeat: HeartbeatObserver[int]) -> bool:
        """Whether Ray says so, or says nothing while the job's heartbeat stands still for long."""
        ended = self._jobs.has_ended(self.mailbox.job)
        heartbeat.observe(self.mailbox.heartbeat_of(THE_JOB), time.monotonic())
        if ended is False:
            heartbeat.restart(time.monotonic())
        return bool(ended) or heartbeat.still_s(time.monotonic()) > self._timing.callers.silent_s

    def _follow_log(self) -> None:
        last = ""

        def write(text: str) -> None:
            nonlocal last
            *lines, last = (last + text).split("\n")
            for line in lines:
                self._say(line)

        self._jobs.follow(self.mailbox.job, write, self._is_detached)
        if last:
            self._say(last)
