"""Calls and answers as lines, by the pipes between a driver process and who started it.

A line is the call's name and its JSON. The other side is `client/carriers/pipe.py`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import IO, Any

from train_core.stages import CLOSE, Answer
from train_core.storage.coordination.job_mailbox import Call


class PipeTransport:
    """One caller, whose calls end with `close`, or when it does."""

    def __init__(self, calls: IO[str], answers: IO[str]) -> None:
        self._calls, self._answers = calls, answers
        self._writing = threading.Lock()

    def calls(self) -> Iterator[tuple[str, Call]]:
        """The calls with their names, as they come."""
        for line in self._calls:
            name, _, document = line.partition(" ")
            # Python's parser: a path may have bytes that are no text.
            call = Call.model_validate(json.loads(document))
            yield name, call
            if call.stage == CLOSE.name:
                return

    def answer(self, name: str, answer: Answer[Any]) -> None:
        """Write the answer. Raises BrokenPipeError if nobody reads it."""
        line = f"{name} {answer.to_json()}\n"
        with self._writing:
            self._answers.write(line)
            self._answers.flush()
