"""What a rehearsal may find in a workload."""

from __future__ import annotations

from typing import Literal

FindingName = Literal[
    "gradients", "state", "repeatable", "schedule", "metric", "loss", "predictions"
]
