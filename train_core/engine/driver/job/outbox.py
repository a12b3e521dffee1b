"""The answers of a job: which calls still wait for one, and which are not written yet."""

from __future__ import annotations

import json
import logging
import math
import threading
import time

from train_core.described_errors import rebuild
from train_core.errors import StorageError
from train_core.storage.coordination.job_mailbox import Answer, Call, Mailbox

_log = logging.getLogger("train_core.driver")


class Outbox:
    """Writes answers in the thread that calls `send`; they are put in from any thread."""

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._lock = threading.Lock()
        self._has_news = threading.Event()
        self._waiting: dict[str, list[str]] = {}
        """For each stage under way and its arguments, the names of the calls that wait for it."""
        self._unsent: dict[str, Answer] = {}
        self._unsent_since = math.inf

    @property
    def is_empty(self) -> bool:
        """Whether no call waits for an answer, and all are written."""
        return not (self._waiting or self._unsent)

    def expect(self, name: str, call: Call) -> bool:
        """Whether the call is to be carried out; else it waits for an equal one under way."""
        work = json.dumps([call.stage, call.arguments], sort_keys=True)
        with self._lock:
            is_new = work not in self._waiting
            self._waiting.setdefault(work, []).append(name)
        return is_new

    def put(self, name: str, answer: Answer) -> None:
        """Take the answer to a call, and to all that wait for the same."""
        with self._lock:
            work = next((one for one, names in self._waiting.items() if name in names), None)
            names = [name] if work is None else self._waiting.pop(work)
            self._unsent |= dict.fromkeys(names, answer)
        self._has_news.set()

    def answer_to(self, name: str) -> Answer:
        """An answer that was put in, and is not written yet."""
        return self._unsent[name]

    def send(self) -> bool:
        """Write the answers that there are; what cannot be written now is kept. Whether one was."""
        was_sent = False
        try:
            for name, answer in list(self._unsent.items()):
                self._mailbox.answer(name, answer)
                del self._unsent[name]
                self._unsent_since, was_sent = math.inf, True
        except StorageError as error:
            # The log is where they can be read meanwhile.
            kept = "; ".join(
                str(rebuild(one.error)) if one.error else "it is done"
                for one in list(self._unsent.values())
            )
            _log.warning("answers cannot be stored, and are retried: %s (%s)", error, kept)
            self._unsent_since = min(self._unsent_since, time.monotonic())
        return was_sent

    def unsent_s(self) -> float:
        """The seconds for which answers could not be written; 0 while a stage still runs."""
        if self._waiting:
            # Their results must be delivered as well.
            self._unsent_since = math.inf
        return max(time.monotonic() - self._unsent_since, 0)

    def wait(self, timeout_s: float) -> None:
        """Wait until an answer is put in, or was since the last wait."""
        self._has_news.wait(timeout_s)
        self._has_news.clear()

    def wait_for_stages(self, timeout_s: float) -> None:
        """Wait until no call waits for a stage any more."""
        deadline = time.monotonic() + timeout_s
        while self._waiting and (left_s := deadline - time.monotonic()) > 0:
            self.wait(left_s)
