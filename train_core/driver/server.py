"""The server of stages: carries out the calls that a transport brings, and answers each.

There are two transports: the pipes of a process (`pipe_transport`), and the mailbox in the run
folder (`mailbox_transport`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

from train_core.described_errors import describe, rebuild
from train_core.errors import ConfigError, StageError
from train_core.requests import Prepared, Request
from train_core.stages import (
    CLOSE,
    PREPARE,
    REPORTS,
    STAGES,
    Answer,
    ArgumentsT,
    ResultT,
    Stage,
)
from train_core.storage.coordination.job_mailbox import Call

_MOST_AT_ONCE = 4
_log = logging.getLogger(__name__)


class Stages(Protocol):
    """The stages of one request."""

    def prepare(self) -> Prepared:
        """Check the request."""

    def ask(self, stage: str, arguments: dict[str, Any]) -> Answer[Any]:
        """Carry out a stage. Raises ConfigError if the request has no such stage."""

    def close(self, status: str) -> None:
        """End all that was begun, with the run's status for MLflow."""

    def failed(self, message: str) -> None:
        """Note why a stage failed; if the run ends as FAILED, MLflow shows the newest message."""


class Transport(Protocol):
    """Brings calls, and takes their answers."""

    def calls(self) -> Iterator[tuple[str, Call]]:
        """The calls with their names, as they come; `close` is the last.

        `prepare` and `close` are answered before the next call is asked for.
        """

    def answer(self, name: str, answer: Answer[Any]) -> None:
        """Deliver the answer to the call of that name; called from any thread."""


class StageServer:
    """Prepares and closes in the thread that serves, and runs each stage in one of its own.

    `open_stages` makes the stages of a request.
    """

    def __init__(self, transport: Transport, open_stages: Callable[[Request], Stages]) -> None:
        self._transport = transport
        self._open_stages = open_stages
        self._stages: Stages | None = None
        self._threads = ThreadPoolExecutor(_MOST_AT_ONCE, "stage")

    def serve(self) -> str | None:
        """Carry out calls until no more come; the status that `close` gave, None without one."""
        status = None
        try:
            for name, call in self._transport.calls():
                if call.stage in (PREPARE.name, CLOSE.name):
                    self._carry_out(name, call)
                    status = call.arguments.get("status")
                else:
                    self._threads.submit(self._carry_out, name, call)
        finally:
            self._threads.shutdown(wait=False)
        return str(status) if status else None

    def _carry_out(self, name: str, call: Call) -> None:
        try:
            answer = self._answer(call)
        # A workload's own sys.exit() would end the thread without a word.
        except (Exception, SystemExit) as error:  # noqa: BLE001 (the caller raises it)
            if isinstance(error, ConfigError) and error.__cause__:
                # Its message is for the user, and has no traceback: the log has the cause's.
                _log.info("%s fails", call.stage, exc_info=error)
            described = describe(call.stage, error)
            answer = Answer[Any](error=described)
            if self._stages is not None:
                self._stages.failed(str(rebuild(described)))
        self._transport.answer(name, answer)

    def _answer(self, call: Call) -> Answer[Any]:
        if call.stage == PREPARE.name:
            asked = PREPARE.arguments.model_validate(call.arguments)
            self._stages = self._open_stages(asked.request)
            return PREPARE.answer(result=self._stages.prepare())
        if call.stage == CLOSE.name:
            if self._stages is not None:
                self._stages.close(CLOSE.arguments.model_validate(call.arguments).status)
            return CLOSE.answer()
        if call.stage not in {stage.name for stage in (*STAGES, REPORTS)}:
            raise ConfigError(f"there is no stage {call.stage!r}")
        if self._stages is None:
            raise StageError(call.stage, "no request was prepared")
        return self._stages.ask(call.stage, call.arguments)


class StageHandlers:
    """The functions that carry out the stages of a request."""

    def __init__(self) -> None:
        self._handlers: dict[str, Callable[[object], Answer[Any]]] = {}

    def handle(
        self, stage: Stage[ArgumentsT, ResultT], handler: Callable[[ArgumentsT], ResultT]
    ) -> None:
        """Have the stage carried out by this function."""

        def answer(arguments: object) -> Answer[ResultT]:
            return stage.answer(result=handler(stage.arguments.model_validate(arguments)))

        self._handlers[stage.name] = answer

    def ask(self, stage: str, arguments: dict[str, Any]) -> Answer[Any]:
        """Carry out a stage. Raises ConfigError if the request has no such stage."""
        if stage not in self._handlers:
            raise ConfigError(f"the request has no stage {stage!r}")
        return self._handlers[stage](arguments)
