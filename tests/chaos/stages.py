"""The stages of a pipeline at which somebody is struck."""

from __future__ import annotations

HELD = (
    *("set-up", "first step", "mid-epoch", "snapshot", "upload"),
    *("before the manifest", "after the manifest", "validation"),
)
"""Stages at which a rank stands still until it is struck."""
SELECTION, INFERENCE = "select", "inference"
"""The stages at which the flow itself stands still, and who scores new data."""
HELD_IN_FLOW = ("before the flow run", "before the first task", SELECTION, "artifacts")
"""Stages at which the flow's process stands still; `artifacts` is when report.json is written."""
SHOWN = {
    "evaluation": "evaluate validation",
    "gate": "gate",
    "promotion": "promote",
    "report": "publish",
}
"""Stages that the command line tells, and what it says."""
AFTER_TRAINING = ("evaluation", SELECTION, INFERENCE, "gate", "promotion", "report")


def is_held(stage: str) -> bool:
    """Whether somebody stands still at the stage until told to go on."""
    return stage in (*HELD, *HELD_IN_FLOW, INFERENCE)
