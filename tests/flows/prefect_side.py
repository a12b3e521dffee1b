"""What Prefect shows of a run, read from its server's database."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def shown_in_prefect(home: Path, run: str) -> list[str]:
    """The states of the run's flow runs, in the order of their beginning."""
    asked = "SELECT state_type FROM flow_run WHERE name = ? ORDER BY created"
    # The command line's own server has another folder than one that is started for a suite.
    (path,) = home.glob("prefect*/prefect.db")
    with closing(sqlite3.connect(path)) as database:
        return [state for (state,) in database.execute(asked, (run,))]
