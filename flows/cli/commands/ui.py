"""`evertrain ui`: MLflow's and Prefect's pages for the runs of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from contextlib import suppress

from pydantic import BaseModel, Field

from flows.cli.output import say
from flows.databases import create_prefect_database, create_tracking_database
from flows.defaults import default_tracking_uri
from flows.timing import TIMING
from train_core.errors import ConfigError, StageError


class UiCommand(BaseModel):
    """Start MLflow's and Prefect's servers and print their addresses; Ctrl-C ends both."""

    tracking_uri: str = Field(
        default_factory=default_tracking_uri,
        description="MLflow's address; MLFLOW_TRACKING_URI, or .evertrain/mlflow.db.",
    )
    mlflow_port: int = Field(default=5000, ge=1, le=65535, description="MLflow's port.")
    prefect_port: int = Field(default=4200, ge=1, le=65535, description="Prefect's port.")

    def cli_cmd(self) -> None:
        """Run the servers until Ctrl-C, or until one of them ends.

        Raises ConfigError if a port is taken: the pages there would be somebody else's; StageError
        if a server ends.
        """
        processes = []
        is_ours = {
            "--mlflow-port": (self.mlflow_port, not self.tracking_uri.startswith("http")),
            "--prefect-port": (self.prefect_port, "PREFECT_API_URL" not in os.environ),
        }
        for flag, (port, starts) in is_ours.items():
            if starts:
                _refuse_taken(port, flag)
        try:
            if not self.tracking_uri.startswith("http"):
                create_tracking_database(self.tracking_uri)
                processes.append(_start("mlflow", *self._mlflow()))
            if "PREFECT_API_URL" not in os.environ:
                create_prefect_database()
                # Its pages look for their data at the port that the environment names.
                named = {"PREFECT_SERVER_API_PORT": str(self.prefect_port)}
                processes.append(_start("prefect", "server", "start", **named))
            if processes:
                say("starting …")
            ports = [port for port, starts in is_ours.values() if starts]
            for port in ports:
                _wait_until_up(port, processes)
            say(f"MLflow:  {self._mlflow_url()}")
            say(f"Prefect: {self._prefect_url()}")
            if processes:
                say("Ctrl-C ends both." if len(processes) > 1 else "Ctrl-C ends it.")
            while processes:
                _refuse_dead(processes)
                time.sleep(TIMING.ui_poll_interval_s)
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()

    def _mlflow_url(self) -> str:
        is_elsewhere = self.tracking_uri.startswith("http")
        return self.tracking_uri if is_elsewhere else f"http://127.0.0.1:{self.mlflow_port}"

    def _prefect_url(self) -> str:
        elsewhere = os.environ.get("PREFECT_API_URL", "").removesuffix("/api")
        return elsewhere or f"http://127.0.0.1:{self.prefect_port}"

    def _mlflow(self) -> tuple[str, ...]:
        uri, port = self.tracking_uri, str(self.mlflow_port)
        quiet = ("--uvicorn-opts", "--log-level warning")
        return ("ui", "--backend-store-uri", uri, "--port", port, *quiet)


def _refuse_taken(port: int, flag: str) -> None:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise ConfigError(
            f"port {port} is taken, perhaps by another `evertrain ui`: name another with {flag}"
        ) from error


def _start(module: str, *arguments: str, **environment: str) -> subprocess.Popen[bytes]:
    """A server that says only what goes wrong."""
    quiet = {
        "MLFLOW_LOGGING_LEVEL": "WARNING",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PYTHONWARNINGS": "ignore",
    }
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.DEVNULL,
        # MLflow would start a dozen processes that wait for jobs; evertrain submits none.
        env={"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", **os.environ, **quiet, **environment},
    )


def _wait_until_up(port: int, processes: list[subprocess.Popen[bytes]]) -> None:
    """Wait until the server takes connections. Raises StageError if one of them has ended."""
    deadline = time.monotonic() + TIMING.server_start_s
    while time.monotonic() < deadline:
        _refuse_dead(processes)
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
            return
        time.sleep(TIMING.ui_poll_interval_s)


def _refuse_dead(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is not None:
            assert isinstance(process.args, list)
            shown = " ".join(process.args[2:4])
            raise StageError("ui", f"`{shown}` ended with code {process.returncode}")
