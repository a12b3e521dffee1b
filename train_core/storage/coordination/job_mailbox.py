"""Calls of stages from far away: a small object for each, and one for its answer.

`calls/<job>/<caller>-0003.json` is a call, and `calls/<job>/<caller>-0003-answer.json` its answer.
A counter in `calls/<job>/<caller>-beat.json` moves while the caller lives, and one in
`calls/<job>/job-beat.json` while the job does. Any process that reaches the run folder can call the
job that drives the run, wherever that is.
"""

from __future__ import annotations

import itertools
import logging
import re
import time
import uuid
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue

from train_core.errors import StorageError
from train_core.storage.coordination.heartbeat import Heartbeat, HeartbeatSender
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import SMALL_BYTES, read_document
from train_core.storage.records.names import CALLS, JobName
from train_core.timing import TIMING, CoordinationTiming

THE_JOB = "job"
_MOST_BYTES = 16 * 2**20
"""Of a call and of an answer, which may list many checkpoints."""

_CALL = re.compile(r"([0-9a-f]{32}-\d{4,})\.json")
_BEAT = re.compile(rf"([0-9a-f]{{32}}|{THE_JOB})-beat\.json")
_AnswerT = TypeVar("_AnswerT", bound=BaseModel)


class Call(BaseModel):
    """What a caller wants done."""

    # By default pydantic writes null for NaN: a diverged loss would be no number for its reader.
    model_config = ConfigDict(frozen=True, ser_json_inf_nan="constants")

    stage: str
    arguments: dict[str, JsonValue]


def jobs_with_calls(store: Store) -> list[str]:
    """The jobs that calls were written for and not cleared away."""
    return store.names(CALLS)


def are_left(store: Store, job: str) -> bool:
    """Whether calls of the job are there; it clears them as it ends."""
    return bool(store.names(f"{CALLS}/{job}"))


def heartbeats_of_scorers(store: Store, own: str = "") -> dict[str, dict[str, int]]:
    """The heartbeats of each job that only scores, and of its callers; `own` left out.

    What is left of a job that drove the run goes with its lease.
    """
    others = [job for job in jobs_with_calls(store) if job != own and not JobName.parse(job)]
    return {job: Mailbox(store, job).heartbeats() for job in others}


def caller_of(name: str) -> str:
    """The caller that made the call of that name."""
    return name.partition("-")[0]


class Mailbox:
    """The mailbox of one job, for one caller or for THE_JOB itself.

    Every method that reads or writes raises StorageError.
    """

    def __init__(
        self,
        store: Store,
        job: str,
        caller: str = "",
        *,
        timing: CoordinationTiming = TIMING.coordination,
    ) -> None:
        self.job = job
        self.timing = timing
        self._store = store
        self._caller = caller or uuid.uuid4().hex
        self._numbers = itertools.count(1)
        self._heartbeats = itertools.count(1)

    @property
    def url(self) -> str:
        """The address of the run folder that it is in."""
        return self._store.url

    def ask(self, stage: str, arguments: dict[str, Any]) -> str:
        """Write a call, and give its name."""
        name = f"{self._caller}-{next(self._numbers):04d}"
        call = Call(stage=stage, arguments=arguments)
        self._store.write(self._key(name), call.model_dump_json().encode())
        return name

    def cancel(self, name: str) -> None:
        """Delete a call that nobody will answer."""
        self._store.delete(self._key(name))

    def detach(self, name: str) -> None:
        """Cancel the only call, and be no caller any more."""
        self.cancel(name)
        self._store.delete(self._key(f"{self._caller}-beat"))

    def answer_to(self, name: str, kind: type[_AnswerT]) -> _AnswerT | None:
        """The answer to a call, which is then cleared away; None if there is none yet."""
        key = self._key(f"{name}-answer")
        try:
            answer, _ = read_document(self._store, kind, key, "an answer", max_bytes=_MOST_BYTES)
        except FileNotFoundError:
            return None
        # What stays goes with the job.
        with suppress(StorageError):
            self._store.delete(self._key(name))
            self._store.delete(key)
        return answer

    def send_heartbeat(self) -> None:
        """Move the heartbeat of this caller, or of the job."""
        heartbeat = Heartbeat(counter=next(self._heartbeats))
        self._store.write(self._key(f"{self._caller}-beat"), heartbeat.model_dump_json().encode())

    def heartbeat_sender(self) -> HeartbeatSender:
        """What sends this one's heartbeats once it is started."""
        return HeartbeatSender(self.send_heartbeat, self.timing.mailbox_heartbeat_s, logging.DEBUG)

    def heartbeat_of(self, caller: str) -> int:
        """The counter of a caller's heartbeat, or of THE_JOB's; 0 before the first."""
        try:
            key = self._key(f"{caller}-beat")
            found, _ = read_document(
                self._store, Heartbeat, key, "a heartbeat", max_bytes=SMALL_BYTES
            )
            return found.counter
        except FileNotFoundError:
            return 0

    def heartbeats(self) -> dict[str, int]:
        """The counters of all heartbeats, THE_JOB's too; -1 for what is no heartbeat."""
        found = map(_BEAT.fullmatch, self._store.names(f"{CALLS}/{self.job}"))
        return {match[1]: self._heartbeat(match[1]) for match in found if match}

    def _heartbeat(self, caller: str) -> int:
        try:
            return self.heartbeat_of(caller)
        except ValueError:
            # A machine that lost its power leaves half of one.
            return -1

    def call_names(self) -> list[str]:
        """The names of all calls that are there, answered or not."""
        found = map(_CALL.fullmatch, self._store.names(f"{CALLS}/{self.job}"))
        return sorted(match[1] for match in found if match)

    def read(self, name: str) -> Call | None:
        """A call; None if it is not there, or was cancelled. Raises CheckpointError for junk."""
        try:
            key = self._key(name)
            return read_document(self._store, Call, key, "a call", max_bytes=_MOST_BYTES)[0]
        except FileNotFoundError:
            return None

    def answer(self, name: str, answer: str) -> None:
        """Write the answer to a call, in JSON."""
        self._store.write(self._key(f"{name}-answer"), answer.encode())

    def clear(self, last: str = "", within_s: float = 0) -> None:
        """Delete the mailbox, once the caller of `last` has its answers or `within_s` is over."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline and any(
            caller_of(name) == caller_of(last) for name in self.call_names()
        ):
            time.sleep(self.timing.mailbox_poll_interval_s)
        self._store.delete(f"{CALLS}/{self.job}")

    def clear_earlier_jobs(self) -> None:
        """Delete the mailboxes of jobs that drove the run before this one; it has the lease.

        One that only scores has none, and deletes nothing.
        """
        if JobName.parse(self.job) is None:
            return
        for job in jobs_with_calls(self._store):
            if job != self.job and JobName.parse(job):
                self._store.delete(f"{CALLS}/{job}")

    def _key(self, name: str) -> str:
        return f"{CALLS}/{self.job}/{name}.json"
