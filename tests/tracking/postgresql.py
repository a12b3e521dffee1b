"""A real PostgreSQL server, from Debian's package, with a database that nobody else uses."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.services import free_port, wait_until_up
from tests import commands

PACKAGED = Path("/usr/lib/postgresql")
USER = "evertrain"


def programs() -> Path | None:
    """The folder of the newest PostgreSQL's programs; None if it is not installed."""
    found = sorted(PACKAGED.glob("*/bin/initdb"), key=lambda path: float(path.parts[-3]))
    return found[-1].parent if found else None


@contextmanager
def postgresql() -> Iterator[str]:
    """The address of an empty database, until the block ends."""
    folder_of_programs = programs()
    assert folder_of_programs is not None, "apt-get install postgresql"
    # It refuses to be run by root, and its socket's path must be short.
    owner = {"user": "nobody", "group": "nogroup"} if os.geteuid() == 0 else {}
    with tempfile.TemporaryDirectory(prefix="pg-", dir="/tmp") as name:
        folder, port = Path(name), free_port()
        if owner:
            shutil.chown(folder, **owner)
        data = folder / "data"
        made = [folder_of_programs / "initdb", "-D", data, "-A", "trust", "-U", USER, "--no-sync"]
        subprocess.run(made, check=True, capture_output=True, cwd=folder, **owner)
        serving = [folder_of_programs / "postgres", "-D", data, "-p", str(port), "-k", folder]
        with (
            (folder / "log").open("w") as log,
            subprocess.Popen(
                [*serving, "-c", "fsync=off"], stdout=log, stderr=log, cwd=folder, **owner
            ) as process,
        ):
            try:
                asking = [folder_of_programs / "pg_isready", "-h", "127.0.0.1", "-p", str(port)]
                wait_until_up(lambda: commands.run(asking).returncode == 0, folder / "log", process)
                yield f"postgresql://{USER}@127.0.0.1:{port}/postgres"
            finally:
                # An immediate shutdown: nothing has to be kept.
                process.send_signal(signal.SIGQUIT)
                process.wait(30)
