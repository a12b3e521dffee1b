"""What a rehearsal tries, by the names that its findings have and that `accept` takes."""

from __future__ import annotations

from typing import Final, Literal, get_args

FindingName = Literal[
    "gradients", "state", "repeatable", "schedule", "metric", "loss", "predictions"
]
EVERYTHING: Final = "everything"
"""Accepts whatever could be found: nothing is rehearsed."""
Accepted = FindingName | Literal["everything"]
ACCEPTABLE = (*get_args(FindingName), EVERYTHING)
