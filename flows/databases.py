"""New databases for Prefect and MLflow: copies of empty ones that were made at installation.

Each of the two builds a new database by running all of its schema's migrations, which takes
seconds. `python -m flows.databases` lets both do so once, and keeps the results in the Python
environment. Without them, and after an upgrade of the library, the library migrates as always.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import closing, suppress
from importlib.metadata import version
from pathlib import Path

PREFECT, MLFLOW = "prefect", "mlflow"
SQLITE = "sqlite:///"
_COMMANDS = {
    PREFECT: ("server", "database", "upgrade", "--yes"),
    # Whatever looks into a database builds it.
    MLFLOW: ("experiments", "search"),
}
_QUIET = {
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "DO_NOT_TRACK": "1",
}


def empty_database(library: str) -> Path:
    """Where the empty database of the installed version of the library is, if it was made."""
    return Path(sys.prefix, "share/evertrain", f"{library}-{version(library)}.db")


def begin_tracking(tracking_uri: str) -> None:
    """Have the folder of a SQLite tracking database, which MLflow does not create, and the file."""
    if tracking_uri.startswith(SQLITE):
        path = Path(tracking_uri.removeprefix(SQLITE))
        path.parent.mkdir(parents=True, exist_ok=True)
        if "?" not in path.name:
            _begin(MLFLOW, path)


def begin_prefect(environment: Mapping[str, str] = os.environ) -> None:
    """Have the database of a Prefect server that is started with this environment.

    A server whose settings name another database never opens the file.
    """
    _begin(PREFECT, Path(environment.get("PREFECT_HOME", "~/.prefect"), "prefect.db").expanduser())


def _begin(library: str, path: Path) -> None:
    """Put an empty database there, unless there is a file already."""
    copy = path.with_name(f".{path.name}-{os.getpid()}")
    # What cannot be copied is built by the library itself.
    with suppress(OSError):
        if path.exists():
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(empty_database(library), copy)
            # Refused if another process was quicker.
            os.link(copy, path)
        finally:
            copy.unlink(missing_ok=True)


def main() -> None:
    """Have both libraries build an empty database, and keep the files."""
    with tempfile.TemporaryDirectory() as folder:
        built = {library: Path(folder, f"{library}.db") for library in _COMMANDS}
        environment = _QUIET | {
            "PREFECT_HOME": folder,
            "PREFECT_API_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{built[PREFECT]}",
            "MLFLOW_TRACKING_URI": f"{SQLITE}{built[MLFLOW]}",
        }
        for library, command in _COMMANDS.items():
            subprocess.run(
                [sys.executable, "-m", library, *command],
                env=os.environ | environment,
                check=True,
                stdout=subprocess.DEVNULL,
            )
        with closing(sqlite3.connect(built[MLFLOW])) as database, database:
            # The default experiment has the path of the current directory; a new one is made.
            database.execute("DELETE FROM experiments")
        for library, path in built.items():
            kept = empty_database(library)
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, kept)


if __name__ == "__main__":
    main()
