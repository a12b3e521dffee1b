"""New databases for Prefect and MLflow: copies of empty ones that were made at installation.

Each of the two builds a new database by running all of its schema's migrations, which takes
seconds. `python -m evertrain_flows.databases` lets both do so once, and keeps the results in the
Python environment. Without them, and after an upgrade of the library, the library migrates as
always.
"""

from __future__ import annotations

import errno
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

from train_core.errors import ConfigError
from train_core.search_path import environment

PREFECT, MLFLOW = "prefect", "mlflow"
SQLITE = "sqlite:///"
_COMMANDS = {
    PREFECT: ("server", "database", "upgrade", "--yes"),
    # Every command of MLflow's builds the database that it reads.
    MLFLOW: ("experiments", "search"),
}
# Files that a deleted database has left: SQLite would apply them to the copy.
_LEFT_BY_ANOTHER = ("-wal", "-journal")


def empty_database(library: str) -> Path:
    """Where the empty database of the installed version of the library is, if it was made."""
    return Path(sys.prefix, "share/evertrain", f"{library}-{version(library)}.db")


def create_tracking_database(tracking_uri: str) -> None:
    """Create a SQLite tracking database that does not exist, and its folder.

    MLflow creates the file, if it has to, and never the folder.
    """
    if tracking_uri.startswith(SQLITE):
        path = Path(tracking_uri.removeprefix(SQLITE))
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.name and "?" not in path.name:
            _create(MLFLOW, path)


def create_prefect_database(variables: Mapping[str, str] = os.environ) -> None:
    """Create the database of a Prefect server that is started with these environment variables.

    A server whose settings name another database never opens the file. Raises ConfigError if
    Prefect could not write there.
    """
    home = Path(variables.get("PREFECT_HOME", "~/.prefect")).expanduser()
    try:
        # As Prefect creates its home: closed to other users.
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(home, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise ConfigError(
            f"Prefect's home {home} cannot be written ({error.strerror}): set PREFECT_HOME, or "
            "HOME, to a folder that can be written"
        ) from error
    _create(PREFECT, home / "prefect.db")


def _create(library: str, path: Path) -> None:
    """Copy an empty database there, unless there is a file already."""
    if any(path.with_name(path.name + end).exists() for end in ("", *_LEFT_BY_ANOTHER)):
        return
    # If the copy fails, the library builds its database itself.
    with suppress(OSError), tempfile.TemporaryDirectory(dir=path.parent) as beside:
        copy = shutil.copyfile(empty_database(library), Path(beside, path.name))
        # Another process may have been quicker.
        os.link(copy, path)


def main() -> None:
    """Let both libraries build an empty database, and keep the files."""
    for library, command in _COMMANDS.items():
        with tempfile.TemporaryDirectory() as folder:
            built = Path(folder, f"{library}.db")
            try:
                _build(built, library, *command)
            except subprocess.CalledProcessError as error:
                # Everything works without it.
                sys.stderr.write(f"warning: {library} has built no empty database: {error}\n")
                continue
            kept = empty_database(library)
            kept.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=kept.parent) as beside:
                copy = shutil.copyfile(built, Path(beside, kept.name))
                copy.replace(kept)


def _build(path: Path, library: str, *command: str) -> None:
    """Run a command of the library's in an environment that names this database only."""
    servers = ("PREFECT_", "MLFLOW_")
    settings = {
        "PREFECT_HOME": str(path.parent),
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{path}",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "MLFLOW_TRACKING_URI": f"{SQLITE}{path}",
        "MLFLOW_LOGGING_LEVEL": "WARNING",
    }
    subprocess.run(
        [sys.executable, "-m", library, *command],
        cwd=path.parent,
        env={key: value for key, value in environment().items() if not key.startswith(servers)}
        | settings,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    if library == MLFLOW:
        with closing(sqlite3.connect(path)) as database, database:
            # The default experiment has the path of the current directory; a new one is made.
            database.execute("DELETE FROM experiments")


if __name__ == "__main__":
    main()
