"""How drivers and workers log: plain lines that the flow reads; a warning has a mark before it."""

from __future__ import annotations

import logging
import re
from typing import TextIO

from train_core.text.shown_text import without_secrets


class _Line(logging.Formatter):
    """The message; a mark before what evertrain itself warns of, and nobody else."""

    def format(self, record: logging.LogRecord) -> str:
        line = without_secrets(super().format(record))
        is_ours = record.name.partition(".")[0] == "train_core"
        return f"{WARNING}{line}" if is_ours and record.levelno >= logging.WARNING else line


def set_up_logging(stream: TextIO) -> None:
    """Set up the logging of this process, unless it is set up already."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Line())
    logging.basicConfig(level=logging.INFO, handlers=[handler])


def set_up_own_logging(stream: TextIO) -> None:
    """Show the warnings of evertrain, in a process whose logging is another library's to set up."""
    logger = logging.getLogger("train_core")
    if not logger.handlers:
        handler = logging.StreamHandler(stream)
        handler.setFormatter(_Line())
        handler.setLevel(logging.WARNING)
        logger.addHandler(handler)
        # The other library's handlers would show them once more.
        logger.propagate = False


WARNING = "warning: "
"""What the lines of the log begin with that somebody should look at."""


# Ray colours its workers' lines, and Ray Data's progress bars move the cursor before them.
_OF_A_TERMINAL = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
# How Ray marks the lines of a worker.
_OF_A_WORKER = re.compile(r"\([\w ]+[^)]*\) ")


def without_codes(line: str) -> str:
    """The line without the codes by which a terminal colours text and moves the cursor."""
    return _OF_A_TERMINAL.sub("", line)


def warning_in(line: str) -> str | None:
    """What a line of the log warns of; None if it is no warning of evertrain's."""
    line = without_codes(line)
    marked = _OF_A_WORKER.match(line)
    text = line[marked.end() :] if marked else line
    return text.removeprefix(WARNING) if text.startswith(WARNING) else None
