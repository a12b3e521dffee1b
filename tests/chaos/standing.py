"""Where somebody is struck, who stands still there, once, until somebody else says `go-on`.

`EVERTRAIN_TEST_HOLD` is `<stage>@<rank>`; a stage is held once, at its first time, until
somebody creates `go-on` in the folder `EVERTRAIN_TEST_NOTES`. The one that is held says so there.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

HOLD = "EVERTRAIN_TEST_HOLD"
NOTES = "EVERTRAIN_TEST_NOTES"
PACE = "EVERTRAIN_TEST_PACE"
"""How many seconds each step takes more, so that there is time for several blows."""
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


def stand_still(*, leaves_pid: bool = False) -> None:
    """Until it may go on; only the first who comes, and the first time."""
    notes = Path(os.environ[NOTES])
    try:
        (notes / "first").touch(exist_ok=False)
    except FileExistsError:
        return
    if leaves_pid:
        note_pid(0)
    (notes / "held").touch()
    while not (notes / "go-on").exists():
        time.sleep(0.02)


def is_held(stage: str) -> bool:
    """Whether somebody stands still at the stage until told to go on."""
    return stage in (*HELD, *HELD_IN_FLOW, INFERENCE)


def note_pid(rank: int) -> None:
    _note(f"pid-{rank}", str(os.getpid()))


def note_step(step: int) -> None:
    _note("step", str(step))


def newest_step(notes: Path) -> int:
    """The newest step that rank 0 has done; 0 before the first one."""
    noted = notes / "step"
    return int(noted.read_text()) if noted.exists() else 0


def _note(name: str, text: str) -> None:
    """Leave a note, which somebody may be reading."""
    written = Path(os.environ[NOTES], f"writing-{os.getpid()}")
    written.write_text(text)
    written.replace(written.with_name(name))
