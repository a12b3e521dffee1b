"""Runs as the terminal and programs see them: a table of all, and one run's state."""

from __future__ import annotations

import os
from typing import Any

from evertrain_flows.cli.output.listings import print_rows
from evertrain_flows.defaults import default_storage
from train_core.client.live import Live
from train_core.client.run_summaries import folded, list_runs, run_status
from train_core.storage.run_folder import RunFolder


def print_runs(storage: str, *, as_json: bool, has_trials: bool = False) -> None:
    """Print the runs of a storage, oldest first; a search as one, unless it `has_trials`.

    For programs, each trial is a run.
    """
    found = list_runs(storage)
    found = found if as_json or has_trials else folded(found)
    hidden = {"order"} if as_json else {"order", "search"}
    rows = [one.model_dump(exclude_unset=True, exclude=hidden) for one in found]
    print_rows(rows, as_json=as_json, empty=f"no runs in {storage}{_storage_origin(storage)}")


def status_shown(folder: RunFolder, *, as_json: bool) -> dict[str, Any]:
    """A run's state; its training's newest reading is one line, for programs a mapping."""
    status = run_status(folder)
    # Where the gate was not asked, a person is told nothing of it.
    unasked = {name for name in ("gate", "search") if not (as_json or getattr(status, name))}
    shown = status.model_dump(exclude={"driven_by", "live", "order", *unasked})
    if status.driven_by:
        live = status.live and (status.live.model_dump() if as_json else _line(status.live))
        shown |= {"driven by": status.driven_by, "live": live}
    return shown


def _line(live: Live) -> str:
    return f"{live.stage}: {live}"


def _storage_origin(storage: str) -> str:
    """Which setting names that storage, if the command did not."""
    if storage != default_storage():
        return ""
    if os.environ.get("EVERTRAIN_STORAGE"):
        return ", which EVERTRAIN_STORAGE names"
    return ": EVERTRAIN_STORAGE is not set, so runs are looked for below the current directory"
