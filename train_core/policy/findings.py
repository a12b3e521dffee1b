"""What a rehearsal tries, by the names that its findings have and that `accept` takes."""

from __future__ import annotations

from typing import Literal

FindingName = Literal[
    "gradients", "state", "repeatable", "schedule", "metric", "loss", "predictions"
]
EVERYTHING = "everything"
"""Accepts whatever could be found: nothing is rehearsed."""
Accepted = FindingName | Literal["everything"]
