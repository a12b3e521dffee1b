"""Runs as the terminal and programs see them: a table of all, and one run's state."""

from __future__ import annotations

import os
from typing import Any

from flows.cli.output import print_rows
from flows.defaults import default_storage
from train_core.client.live import Live
from train_core.client.runs import list_runs, run_status
from train_core.storage.run_folder import RunFolder


def print_runs(storage: str, *, as_json: bool) -> None:
    """Print the runs of a storage, oldest first."""
    rows = [one.model_dump(exclude_unset=True) for one in list_runs(storage)]
    print_rows(rows, as_json=as_json, empty=f"no runs in {storage}{_why_there(storage)}")


def status_shown(folder: RunFolder, *, as_json: bool) -> dict[str, Any]:
    """Where a run is: what its training tells is a line for people, and all of it for programs."""
    found = run_status(folder)
    shown = found.model_dump(exclude={"driven_by", "live"})
    if found.driven_by:
        live = found.live and (found.live.model_dump() if as_json else _line(found.live))
        shown |= {"driven by": found.driven_by, "live": live}
    return shown


def _line(live: Live) -> str:
    return f"{live.stage}: {live}"


def _why_there(storage: str) -> str:
    """Why the runs are looked for in that folder, if the command did not name it."""
    if storage != default_storage():
        return ""
    if os.environ.get("EVERTRAIN_STORAGE"):
        return ", which EVERTRAIN_STORAGE names"
    return ": EVERTRAIN_STORAGE is not set, so runs are looked for below the current directory"
