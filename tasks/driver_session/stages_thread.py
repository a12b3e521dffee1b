"""The thread in which the stages of a session run, and what they return or raise."""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any


class StagesThread:
    """Runs the stages at most once, in a thread of their own, and keeps their outcome.

    Threads may wait for the outcome before the stages have begun.
    """

    def __init__(self) -> None:
        self.has_begun = False
        self.is_without_flow = False
        """Whether the stages run outside of the flow run, and can show nothing as its artifacts."""
        self._begun = threading.Event()
        self._outcome: Future[Any] = Future()

    def begin(self, stages: Callable[[], Any], *, without_flow: bool) -> None:
        """Start the thread, in a copy of the caller's context. Call it once."""
        assert not self.has_begun
        self.has_begun, self.is_without_flow = True, without_flow
        self._begun.set()
        context = contextvars.copy_context()
        thread = threading.Thread(
            target=context.run, args=(self._run, stages), name="stages", daemon=True
        )
        thread.start()

    def wait_until_begun(self, timeout_s: float) -> bool:
        """Whether the stages have begun within the time."""
        return self._begun.wait(timeout_s)

    def wait_until_ended(self, timeout_s: float) -> bool:
        """Whether the stages have ended within the time, in whatever way."""
        with suppress(Exception):
            self._outcome.exception(timeout_s)
        return self._outcome.done()

    def result(self) -> Any:
        """What the stages return; waits for it. Raises what they raise."""
        return self._outcome.result()

    def _run(self, stages: Callable[[], Any]) -> None:
        try:
            self._outcome.set_result(stages())
        except Exception as error:  # noqa: BLE001 (`result` raises it)
            self._outcome.set_exception(error)
        except BaseException as error:  # noqa: BLE001 (whoever waits was not interrupted)
            self._outcome.set_exception(RuntimeError(f"the stages were interrupted: {error!r}"))
