"""What Prefect shows of a run, read from its server's database."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path


def shown_in_prefect(home: Path, run: str) -> list[str]:
    """The states of the run's flow runs, in the order of their beginning."""
    return _read(home, "SELECT state_type FROM flow_run WHERE name = ? ORDER BY created", run)


def artifacts_in_prefect(home: Path, run: str) -> list[str]:
    """The kinds of the artifacts that the run's flow runs have: table, markdown, progress."""
    asked = (
        "SELECT artifact.type FROM artifact JOIN flow_run ON artifact.flow_run_id = flow_run.id "
        "WHERE flow_run.name = ?"
    )
    return _read(home, asked, run)


def _read(home: Path, asked: str, run: str) -> list[str]:
    # The command line's own server has another folder than one that is started for a suite.
    (path,) = home.glob("prefect*/prefect.db")
    with closing(sqlite3.connect(path)) as database:
        return [value for (value,) in database.execute(asked, (run,))]
