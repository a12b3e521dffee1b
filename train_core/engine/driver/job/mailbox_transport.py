"""The job's side of its mailbox: several callers attach to one server of stages, and detach.

The first request that is accepted is the job's; a later caller must want the same. A stage that
several callers ask for with the same arguments is carried out once. The job ends when its last
caller closes it, or when none has lived for long: docs/design/attach.md. `job/__init__.py` has the
whole way of a call.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass

from train_core.described_errors import describe
from train_core.engine.driver.job.caller_heartbeats import Callers
from train_core.engine.driver.job.outbox import Outbox
from train_core.engine.driver.job.shared_request import refuse_another
from train_core.engine.driver.server import CLOSE, PREPARE, as_answer
from train_core.engine.driver.timing import TIMING, Timing
from train_core.errors import ConfigError, StorageError
from train_core.policy.end_status import EndStatus
from train_core.requests import Prepared, Request, request_of
from train_core.storage.coordination.job_mailbox import Answer, Call, Mailbox, caller_of

_NO_CALLER = ""
_log = logging.getLogger("train_core.driver")


@dataclass(frozen=True)
class Closing:
    """A call that ends the job, unless the heartbeat of another caller moves again."""

    name: str
    call: Call
    others: dict[str, int]
    """How far each other's heartbeat was."""


class MailboxTransport:
    """The calls of one job, of which `first` is the name of the one that it was started with."""

    def __init__(self, mailbox: Mailbox, first: str, timing: Timing = TIMING) -> None:
        self._mailbox = mailbox
        self._first = first
        self._timing = timing
        self._callers = Callers(mailbox, timing)
        self._outbox = Outbox(mailbox)
        self._seen: set[str] = set()
        self._request: Request | None = None
        """The request that was accepted."""
        self._prepared: Prepared | None = None
        """The answer to it."""
        self._closing: Closing | None = None
        self._last = _NO_CALLER
        """The name of the call that ends the job: a close, or a request that was refused."""

    def calls(self) -> Iterator[tuple[str, Call]]:
        """The calls to be carried out, until the end of the job.

        Raises ConfigError if the call that the job was started with is not there.
        """
        self._wait_for_first()
        heartbeat = self._mailbox.heartbeat_sender()
        heartbeat.start()
        try:
            yield from self._calls()
        finally:
            heartbeat.stop(self._timing.last_heartbeat_s)

    def answer(self, name: str, answer: Answer) -> None:
        """Have the answer written as soon as the storage takes it."""
        if name != _NO_CALLER:
            self._outbox.put(name, answer)

    def clear(self) -> None:
        """Delete the mailbox, once the last caller took its answer, or has had time to."""
        self._mailbox.clear(self._last, self._timing.answer_taken_s)

    def _calls(self) -> Iterator[tuple[str, Call]]:
        idle_since = last_news_at = time.monotonic()
        while True:
            new = self._new_calls()
            for name, call in new:
                yield from self._taken(name, call)
            if (closing := self._due_closing()) is not None:
                self._last = closing.name
                yield closing.name, closing.call
            if self._last != _NO_CALLER:
                # Stages that it ended have an answer, too.
                self._outbox.wait_for_stages(self._timing.stages_end_s)
                self._outbox.send()
                return
            if self._outbox.send() or new:
                last_news_at = time.monotonic()
            if new or not self._outbox.is_empty or self._callers.any_lives():
                idle_since = time.monotonic()
            if given_up := self._given_up(idle_since):
                _log.error("%s: the job ends", given_up)
                yield _NO_CALLER, Call(stage=CLOSE, arguments={"status": EndStatus.FAILED})
                return
            self._outbox.wait(self._mailbox.timing.pause_s(time.monotonic() - last_news_at))

    def _given_up(self, idle_since: float) -> str:
        """Why the job ends although no caller has said so; empty if it goes on."""
        limits = self._timing
        if self._outbox.unsent_s() > limits.cut_off_s:
            return f"the outcome could not be stored for {limits.cut_off_s:g} s"
        if time.monotonic() - idle_since > limits.linger_s:
            return f"no caller for {limits.linger_s:g} s"
        return ""

    def _wait_for_first(self) -> None:
        deadline = time.monotonic() + self._timing.first_call_wait_s
        while self._first not in self._mailbox.call_names():
            if time.monotonic() > deadline:
                raise ConfigError(
                    f"{self._mailbox.url} is another place on the cluster than on the caller's "
                    "machine: take a storage that both reach, such as s3://"
                )
            time.sleep(self._timing.first_call_poll_interval_s)

    def _new_calls(self) -> list[tuple[str, Call]]:
        found = []
        try:
            # IMPORTANT: the call that the job was started with comes first. One beside it may be of
            # a caller that died before it had submitted a job, and wanted something else.
            for name in sorted(self._mailbox.call_names(), key=lambda name: name != self._first):
                if name in self._seen:
                    continue
                try:
                    call = self._mailbox.read(name)
                except ValueError as error:
                    self._outbox.put(name, as_answer(error=describe("call", error)))
                    call = None
                self._seen.add(name)
                if call:
                    found.append((name, call))
        except StorageError as error:
            _log.warning("calls cannot be read: %s", error)
        return found

    def _taken(self, name: str, call: Call) -> Iterator[tuple[str, Call]]:
        """The call, if it is to be carried out now."""
        self._callers.add(caller_of(name))
        if call.stage == CLOSE:
            self._close(name, call)
        elif call.stage == PREPARE:
            yield from self._prepare(name, call)
        elif self._outbox.expect(name, call):
            yield name, call

    def _prepare(self, name: str, call: Call) -> Iterator[tuple[str, Call]]:
        """The first caller's request is the job's; one that comes later must want the same."""
        if self._request is None:
            yield name, call
            answer = self._outbox.answer_to(name)
            if answer.error is None:
                self._accept(call, answer)
        else:
            answer = self._attach(self._request, call)
            self._outbox.put(name, answer)
        if answer.error is not None:
            # It will call no more.
            self._callers.remove(caller_of(name))
        # Without a request that was accepted there is nothing to go on with.
        self._last = name if self._request is None else _NO_CALLER

    def _accept(self, call: Call, answer: Answer) -> None:
        self._request = request_of(call.arguments["request"])
        self._prepared = Prepared.model_validate(answer.result)
        if not self._prepared.is_begun:
            return
        try:
            # The lease is this job's.
            self._mailbox.clear_earlier_jobs()
        except StorageError as error:
            _log.warning("mailboxes of earlier jobs could not be deleted: %s", error)

    def _attach(self, ours: Request, call: Call) -> Answer:
        try:
            refuse_another(self._mailbox.job, ours, request_of(call.arguments.get("request")))
        # A workload's own sys.exit() would end the job without a word.
        except (Exception, SystemExit) as error:  # noqa: BLE001 (the caller raises it)
            return as_answer(error=describe(PREPARE, error))
        assert self._prepared is not None, "a request was accepted"
        attached = self._prepared.model_copy(update={"resumed": True})
        return as_answer(result=attached.model_dump(mode="json"))

    def _close(self, name: str, call: Call) -> None:
        self._callers.remove(caller_of(name))
        self._callers.observe()
        if self._closing is not None:
            # The first of them ends nothing: another caller was still there.
            self._outbox.put(self._closing.name, as_answer(result=None))
        self._closing = Closing(name, call, self._callers.counters())

    def _due_closing(self) -> Closing | None:
        """The call that ends the job now; None if none does, or another caller may still live."""
        closing = self._closing
        if closing is None:
            return None
        lives = self._callers.any_lives()
        # A caller that attached after that call counts as well.
        if self._callers.any_has_moved(closing.others):
            # It is the other's job now.
            self._outbox.put(closing.name, as_answer(result=None))
            self._closing = None
            return None
        return None if lives else closing
