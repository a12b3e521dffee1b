"""The log of a session: the lines of its driver and workers, and warnings of the flow's own."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from train_core.text.log_lines import WARNING, warning_in, without_codes
from train_core.text.shown_text import shown

REMEMBERED_LINES = 2000


class SessionLog:
    """Passes each line to every listener; a later listener gets the newest lines first.

    All methods may be called from any thread.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lines: deque[str] = deque(maxlen=REMEMBERED_LINES)
        self._listeners: list[Callable[[str], None]] = []

    def add(self, line: str) -> None:
        """Add a line, or several, without colours, control characters and secrets."""
        lines = without_codes(line).split("\n")
        line = "\n".join(shown(one, keeps="\t") for one in lines)
        with self._lock:
            self._lines.append(line)
            for listener in list(self._listeners):
                try:
                    listener(line)
                except Exception:  # noqa: BLE001 (a full disk, a logger of Prefect's)
                    # The other listeners get the line although one failed.
                    self._listeners.remove(listener)

    def add_warning(self, warning: str) -> None:
        """Add a line that the terminal shows, too."""
        self.add(f"{WARNING}{warning}")

    def listen(self, listener: Callable[[str], None]) -> None:
        """Call `listener` with each line, also with the remembered ones."""
        with self._lock:
            for line in self._lines:
                listener(line)
            self._listeners.append(listener)

    def send_to(self, logger: logging.Logger | logging.LoggerAdapter[Any]) -> None:
        """Log each line with `logger`, also the remembered ones; warnings as such."""

        def log(line: str) -> None:
            level = logging.INFO if warning_in(line) is None else logging.WARNING
            logger.log(level, "%s", line)

        self.listen(log)


def run_logger() -> logging.Logger | logging.LoggerAdapter[Any]:
    """Prefect's logger of the flow or task run that calls; outside of one, an ordinary one."""
    # Imported late: the command line opens a session before it loads Prefect.
    from prefect import get_run_logger
    from prefect.exceptions import MissingContextError

    try:
        return get_run_logger()
    except MissingContextError:
        return logging.getLogger("evertrain_tasks")
