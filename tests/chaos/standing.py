"""Standing still, once, until somebody says `go-on`: so that who stands there can be struck.

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
