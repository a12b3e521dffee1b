"""Calls of stages from far away: a small object for each, and one for its answer.

`calls/<job>/<caller>-0003.json` asks, and `calls/<job>/<caller>-0003-answer.json` answers. Whoever
can read the run folder can reach the job that drives it, wherever that is.
"""

from __future__ import annotations

import re
import time
import uuid
from typing import Any

from pydantic import BaseModel, ConfigDict, JsonValue

from train_core.storage.documents import read_document
from train_core.storage.names import CALLS
from train_core.storage.store import Store

_CALL = re.compile(r"([0-9a-f]{32}-\d{4})\.json")


class Call(BaseModel):
    """What a caller wants done."""

    model_config = ConfigDict(frozen=True)

    stage: str
    arguments: dict[str, JsonValue]


class Answer(BaseModel):
    """What came of it: the stage's result, or the error that it raised."""

    model_config = ConfigDict(frozen=True)

    result: JsonValue = None
    error: dict[str, JsonValue] | None = None


def jobs(store: Store) -> list[str]:
    """The jobs that calls were written for and that have not cleared them away."""
    return store.names(CALLS)


class Calls:
    """The calls of one job. All methods raise StorageError."""

    def __init__(self, store: Store, job: str) -> None:
        self.job = job
        self._store = store
        self._caller = uuid.uuid4().hex
        self._count = 0

    def ask(self, stage: str, arguments: dict[str, Any]) -> str:
        """Write a call, and give its name."""
        self._count += 1
        name = f"{self._caller}-{self._count:04d}"
        call = Call(stage=stage, arguments=arguments)
        self._store.write(self._key(name), call.model_dump_json().encode())
        return name

    def answer_to(self, name: str) -> Answer | None:
        """The answer to a call, which is then cleared away; None if there is none yet."""
        key = self._key(f"{name}-answer")
        try:
            answer, _ = read_document(self._store, Answer, key, "an answer")
        except FileNotFoundError:
            return None
        self._store.delete(self._key(name))
        self._store.delete(key)
        return answer

    def asked(self) -> list[str]:
        """The names of all calls that are there, answered or not."""
        found = map(_CALL.fullmatch, self._store.names(f"{CALLS}/{self.job}"))
        return sorted(match[1] for match in found if match)

    def read(self, name: str) -> Call | None:
        """A call; None if its caller took it back."""
        try:
            return read_document(self._store, Call, self._key(name), "a call")[0]
        except FileNotFoundError:
            return None

    def answer(self, name: str, answer: Answer) -> None:
        """Write the answer to a call."""
        self._store.write(self._key(f"{name}-answer"), answer.model_dump_json().encode())

    def clear(self, last: str = "", within_s: float = 0) -> None:
        """Delete all of them, once the answer to the last one was taken or the time is over."""
        deadline = time.monotonic() + within_s
        while last in self.asked() and time.monotonic() < deadline:
            time.sleep(0.2)
        self._store.delete(f"{CALLS}/{self.job}")

    def _key(self, name: str) -> str:
        return f"{CALLS}/{self.job}/{name}.json"
