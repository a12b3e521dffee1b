"""The job's side of its mailbox: several callers attach to one server of stages, and detach.

The first request that is accepted is the job's; a later caller must want the same. A stage that
several callers ask for with the same arguments is carried out once. The job ends when its last
caller closes it, or when none has lived for long: docs/design/attach.md.
"""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from train_core.described_errors import describe, rebuild
from train_core.driver.job.caller_heartbeats import Callers
from train_core.driver.job.shared_request import refuse_another
from train_core.errors import ConfigError, StorageError
from train_core.policy.end_status import EndStatus
from train_core.requests import Prepared, Request
from train_core.stages import CLOSE, PREPARE, Answer
from train_core.storage.coordination.job_mailbox import Call, Mailbox, caller_of
from train_core.timing import TIMING, Timing

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
        self._seen: set[str] = set()
        self._accepted: Call | None = None
        """The call whose request was accepted; the server has parsed it."""
        self._prepared: Prepared | None = None
        """The answer to it."""
        self._preparing: dict[str, Answer[Any]] = {}
        """The answer to the newest request that may be accepted, by its call's name."""
        self._closing: Closing | None = None
        self._last = _NO_CALLER
        """The name of the call that ends the job: a close, or a request that was refused."""
        self._lock = threading.Lock()
        """Guards `_under_way`, `_unsent` and `_unsent_since`."""
        self._under_way: dict[str, list[str]] = {}
        """For each stage under way and its arguments, the names of the calls that wait for it."""
        self._unsent: set[str] = set()
        """The calls whose answers are being written."""
        self._unsent_since = math.inf
        self._has_news = threading.Event()
        self._is_cut_off = threading.Event()
        """Set when the job ends although answers are not written: they are tried no longer."""

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

    def answer(self, name: str, answer: Answer[Any]) -> None:
        """Write the answer for all that wait for the same, as soon as the storage takes it."""
        if name == _NO_CALLER:
            return
        if name in self._preparing:
            self._preparing[name] = answer
        if name == self._last:
            # The stages that it has ended are answered first.
            self._wait_for_stages()
        with self._lock:
            work = next((one for one, names in self._under_way.items() if name in names), None)
            names = [name] if work is None else self._under_way.pop(work)
            self._unsent |= set(names)
        for one in names:
            self._write(one, answer)
        self._has_news.set()

    def clear(self) -> None:
        """Delete the mailbox, once the last caller took its answer, or has had time to."""
        self._mailbox.clear(self._last, self._timing.answer_taken_s)

    def _write(self, name: str, answer: Answer[Any]) -> None:
        """Write the answer, tried again until the storage takes it, or the job gives up."""
        document = answer.to_json()
        while True:
            try:
                self._mailbox.answer(name, document)
            except StorageError as error:
                # The log is where it can be read meanwhile.
                kept = str(rebuild(answer.error)) if answer.error else "it is done"
                _log.warning("an answer cannot be stored, and is retried: %s (%s)", error, kept)
                with self._lock:
                    self._unsent_since = min(self._unsent_since, time.monotonic())
            else:
                with self._lock:
                    self._unsent.discard(name)
                    self._unsent_since = math.inf
                return
            if self._unsent_s() > self._timing.cut_off_s:
                self._is_cut_off.set()
            if self._is_cut_off.wait(self._mailbox.timing.longest_pause_s):
                return

    def _unsent_s(self) -> float:
        """For how many seconds answers could not be written; 0 while the job waits for a stage."""
        with self._lock:
            if self._under_way and self._last == _NO_CALLER:
                # Their results must be delivered as well.
                self._unsent_since = math.inf
            return max(time.monotonic() - self._unsent_since, 0)

    def _is_busy(self) -> bool:
        with self._lock:
            return bool(self._under_way or self._unsent)

    def _wait_for_stages(self) -> None:
        """Wait until no stage is under way and all are answered, for `stages_end_s` at most."""
        deadline = time.monotonic() + self._timing.stages_end_s
        while self._is_busy() and (left_s := deadline - time.monotonic()) > 0:
            self._has_news.wait(left_s)
            self._has_news.clear()

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
                return
            if new or self._has_news.is_set():
                last_news_at = time.monotonic()
            self._has_news.clear()
            if new or self._is_busy() or self._callers.any_lives():
                idle_since = time.monotonic()
            if given_up := self._given_up(idle_since):
                _log.error("%s: the job ends", given_up)
                self._is_cut_off.set()
                yield _NO_CALLER, Call(stage=CLOSE.name, arguments={"status": EndStatus.FAILED})
                return
            self._has_news.wait(self._mailbox.timing.pause_s(time.monotonic() - last_news_at))

    def _given_up(self, idle_since: float) -> str:
        """Why the job ends although no caller has said so; empty if it goes on."""
        limits = self._timing
        if self._is_cut_off.is_set() or self._unsent_s() > limits.cut_off_s:
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
                    self._write(name, Answer[Any](error=describe("call", error)))
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
        if call.stage == CLOSE.name:
            self._close(name, call)
        elif call.stage == PREPARE.name:
            yield from self._prepare(name, call)
        elif self._is_new_work(name, call):
            yield name, call

    def _is_new_work(self, name: str, call: Call) -> bool:
        """Whether the call is to be carried out; else it waits for an equal one under way."""
        work = json.dumps([call.stage, call.arguments], sort_keys=True)
        with self._lock:
            is_new = work not in self._under_way
            self._under_way.setdefault(work, []).append(name)
        return is_new

    def _prepare(self, name: str, call: Call) -> Iterator[tuple[str, Call]]:
        """The first caller's request is the job's; one that comes later must want the same."""
        if self._accepted is None:
            self._preparing = {name: Answer[Any]()}
            yield name, call
            answer = self._preparing.pop(name)
            if answer.error is None:
                self._accept(call, answer.unwrapped())
        else:
            answer = self._attach(self._accepted, call)
            self._write(name, answer)
        if answer.error is not None:
            # It will call no more.
            self._callers.remove(caller_of(name))
        if self._accepted is None:
            # Without a request that was accepted there is nothing to go on with.
            self._wait_for_stages()
            self._last = name

    def _accept(self, call: Call, prepared: Prepared) -> None:
        self._accepted = call
        self._prepared = prepared
        if not prepared.is_begun:
            return
        try:
            # The lease is this job's.
            self._mailbox.clear_earlier_jobs()
        except StorageError as error:
            _log.warning("mailboxes of earlier jobs could not be deleted: %s", error)

    def _attach(self, accepted: Call, call: Call) -> Answer[Any]:
        try:
            ours, theirs = _request_of(accepted), _request_of(call)
            refuse_another(self._mailbox.job, ours, theirs)
        # A workload's own sys.exit() would end the job without a word.
        except (Exception, SystemExit) as error:  # noqa: BLE001 (the caller raises it)
            return Answer[Any](error=describe(PREPARE.name, error))
        assert self._prepared is not None, "a request was accepted"
        return PREPARE.answer(result=self._prepared.model_copy(update={"resumed": True}))

    def _close(self, name: str, call: Call) -> None:
        self._callers.remove(caller_of(name))
        self._callers.observe()
        if self._closing is not None:
            # The first of them ends nothing: another caller was still there.
            self._write(self._closing.name, CLOSE.answer())
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
            self._write(closing.name, CLOSE.answer())
            self._closing = None
            return None
        return None if lives else closing


def _request_of(call: Call) -> Request:
    return PREPARE.arguments.model_validate(call.arguments).request
