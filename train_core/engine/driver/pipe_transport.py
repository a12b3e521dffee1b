"""Calls and answers as JSON lines, by the pipes between a driver process and who started it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import IO

from train_core.engine.driver.server import CLOSE
from train_core.storage.coordination.job_mailbox import Answer, Call


class PipeTransport:
    """One caller, whose calls end with `close`, or when it does."""

    def __init__(self, calls: IO[str], answers: IO[str]) -> None:
        self._calls, self._answers = calls, answers
        self._writing = threading.Lock()

    def calls(self) -> Iterator[tuple[str, Call]]:
        """The calls with their names, as they come."""
        for line in self._calls:
            received = json.loads(line)
            call = Call(stage=received["stage"], arguments=received["arguments"])
            yield received["call"], call
            if call.stage == CLOSE:
                return

    def answer(self, name: str, answer: Answer) -> None:
        """Write the answer. Raises BrokenPipeError if nobody reads it."""
        line = json.dumps({"call": name, **answer.model_dump(exclude_unset=True)})
        with self._writing:
            self._answers.write(line + "\n")
            self._answers.flush()
