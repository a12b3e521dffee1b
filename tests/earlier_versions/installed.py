"""A copy of `installation`, at another place than the one where it was written."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from train_core.champion.log import ModelLog
from train_core.storage.run_folder import RunFolder

WRITTEN = Path(__file__).parent / "installation"
WRITTEN_AT = "/srv/evertrain"
MODEL = "Digits"


@dataclass(frozen=True)
class Installation:
    """A home with `runs`, an MLflow of SQLite and a user's `project`."""

    home: Path

    @classmethod
    def copied(cls, home: Path) -> Installation:
        """What was written, moved to `home`, as somebody who moves it does."""
        shutil.copytree(WRITTEN, home, dirs_exist_ok=True)
        with closing(sqlite3.connect(home / "mlflow.db")) as database, database:
            tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
            for (table,) in database.execute(tables).fetchall():
                for _, column, kind, *_ in database.execute(f"PRAGMA table_info({table})"):
                    if "CHAR" in kind or "TEXT" in kind:
                        moved = f"UPDATE {table} SET {column} = replace({column}, ?, ?)"
                        database.execute(moved, (WRITTEN_AT, str(home)))
        # A report has the addresses of its results; its bytes are covered by no digest.
        for report in home.glob("runs/*/report.json"):
            report.write_text(report.read_text().replace(WRITTEN_AT, str(home)))
        return cls(home)

    @property
    def storage(self) -> str:
        return str(self.home / "runs")

    @property
    def tracking_uri(self) -> str:
        return f"sqlite:///{self.home}/mlflow.db"

    @property
    def log(self) -> ModelLog:
        return ModelLog(self.storage, MODEL)

    def run(self, name: str) -> RunFolder:
        return RunFolder(self.storage, name)
