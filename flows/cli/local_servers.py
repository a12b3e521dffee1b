"""MLflow's and Prefect's own servers on this machine, as `evertrain ui` starts them."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Self

from evertrain_flows.databases import create_prefect_database, create_tracking_database
from evertrain_flows.timing import TIMING
from train_core.errors import ConfigError, StageError
from train_core.policy.logins import public_uri, without_login_of
from train_core.search_path import environment

Process = subprocess.Popen[bytes]
LOOPBACK = "127.0.0.1"
"""The servers show runs to everybody who reaches them: nobody of another machine does."""
KEPT_LEASES = {
    "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": (
        "prefect.server.concurrency.lease_storage.filesystem"
    )
}
"""Prefect's server keeps who holds a deployment's slot in its home, beside its database.

By default it keeps that in its memory: what a server that was killed has forgotten, nobody gives
back, and a deployment with one slot begins no run any more.
"""
_UNLESS_SET = {
    # MLflow would start a dozen processes that wait for jobs; evertrain submits none.
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    **KEPT_LEASES,
}
_DATABASES = ("mssql", "mysql", "postgres")
"""How the addresses begin of the databases that MLflow reaches through a driver."""


class LocalServers:
    """The servers that were started; use it as a context manager to end them."""

    def __init__(self) -> None:
        self._processes: list[Process] = []
        self._ports: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for process in self._processes:
            process.terminate()
        for process in self._processes:
            process.wait()

    def __len__(self) -> int:
        return len(self._processes)

    def start_mlflow(self, tracking_uri: str, port: int) -> None:
        """Start MLflow's server for a database or a folder."""
        create_tracking_database(tracking_uri)
        quiet = ("--uvicorn-opts", "--log-level warning")
        address = ("--host", LOOPBACK, "--port", str(port))
        # Not as an argument: every user of the machine can see those, and it may hold a password.
        variables = {"MLFLOW_BACKEND_STORE_URI": tracking_uri}
        self._processes.append(_start("mlflow", "ui", *address, *quiet, **variables))
        self._ports.append(port)

    def start_prefect(self, port: int) -> None:
        """Start Prefect's server."""
        create_prefect_database()
        # Its pages look for their data at the host and port that the environment names.
        variables = {"PREFECT_SERVER_API_HOST": LOOPBACK, "PREFECT_SERVER_API_PORT": str(port)}
        self._processes.append(
            _start("prefect", "server", "start", "--host", LOOPBACK, **variables)
        )
        self._ports.append(port)

    def wait_until_up(self) -> None:
        """Wait until all take connections. Raises StageError if one has ended."""
        for port in self._ports:
            _wait_until_up(port, self._processes)

    def watch(self) -> None:
        """Wait for ever. Raises StageError when one ends."""
        while self._processes:
            _refuse_dead(self._processes)
            time.sleep(TIMING.ui_poll_interval_s)


def refuse_taken_port(port: int, flag: str) -> None:
    """Raise ConfigError if another process has the port: the pages there would be its own."""
    try:
        socket.create_server((LOOPBACK, port)).close()
    except OSError as error:
        raise ConfigError(
            f"port {port} is taken, perhaps by another `evertrain ui`: name another with {flag}"
        ) from error


def refuse_unknown_database(tracking_uri: str) -> None:
    """Raise ConfigError if MLflow's server could not open such a database: a driver is missing."""
    if not tracking_uri.startswith(_DATABASES):
        return
    # Imported late: only a database that is no file is opened through it.
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        make_url(tracking_uri).get_dialect().import_dbapi()
    except (ArgumentError, ImportError, ValueError) as error:
        why = without_login_of(str(error), tracking_uri)
        raise ConfigError(
            f"MLflow cannot open the database {public_uri(tracking_uri)}: {why}. Install its "
            "driver in evertrain's environment, or mend the address (--tracking-uri)"
        ) from error


def _start(module: str, *arguments: str, **variables: str) -> Process:
    """Start a server that logs its warnings and errors only."""
    quiet = {
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PYTHONWARNINGS": "ignore",
    }
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.DEVNULL,
        env={**_UNLESS_SET, **environment(**quiet, **variables)},
    )


def _wait_until_up(port: int, processes: Sequence[Process]) -> None:
    """Wait until the server takes connections. Raises StageError if one of them has ended."""
    deadline = time.monotonic() + TIMING.server_start_s
    while time.monotonic() < deadline:
        _refuse_dead(processes)
        with suppress(OSError):
            socket.create_connection((LOOPBACK, port), timeout=1).close()
            return
        time.sleep(TIMING.ui_poll_interval_s)


def _refuse_dead(processes: Sequence[Process]) -> None:
    for process in processes:
        if process.poll() is not None:
            assert isinstance(process.args, list)
            shown = " ".join(process.args[2:4])
            raise StageError("ui", f"`{shown}` ended with code {process.returncode}")
