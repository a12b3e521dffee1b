"""How processes of ours log: plain lines, which the flow hears; a warning says that it is one."""

from __future__ import annotations

import logging
from typing import TextIO

from train_core.driver import WARNING


class _Line(logging.Formatter):
    """The message; a mark before what evertrain itself warns of, and nobody else."""

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        is_ours = record.name.partition(".")[0] == "train_core"
        return f"{WARNING}{line}" if is_ours and record.levelno >= logging.WARNING else line


def set_up_logging(stream: TextIO) -> None:
    """Set up the logging of this process, unless it is set up already."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(_Line())
    logging.basicConfig(level=logging.INFO, handlers=[handler])
