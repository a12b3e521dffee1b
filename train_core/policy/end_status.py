"""How a run ends."""

from __future__ import annotations

from enum import StrEnum


class EndStatus(StrEnum):
    """How a run ended, as the lease records it and MLflow shows it."""

    FINISHED = "FINISHED"
    FAILED = "FAILED"
    KILLED = "KILLED"
    """It was stopped on request."""
