"""`evertrain ui`: MLflow's and Prefect's pages for the runs of this machine."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

from pydantic import BaseModel, Field

from flows.commands.output import say
from flows.parameters import default_tracking_uri, make_tracking_folder
from train_core.errors import ConfigError


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

        Raises ConfigError if a port is taken: the pages there would be somebody else's.
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
            if self.tracking_uri.startswith("http"):
                say(f"MLflow:  {self.tracking_uri}")
            else:
                make_tracking_folder(self.tracking_uri)
                processes.append(_start("mlflow", *self._mlflow()))
                say(f"MLflow:  http://127.0.0.1:{self.mlflow_port}")
            if "PREFECT_API_URL" in os.environ:
                say(f"Prefect: {os.environ['PREFECT_API_URL'].removesuffix('/api')}")
            else:
                port = str(self.prefect_port)
                processes.append(_start("prefect", "server", "start", "--port", port))
                say(f"Prefect: http://127.0.0.1:{self.prefect_port}")
            say("Ctrl-C ends both.")
            for process in processes:
                process.wait()
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()

    def _mlflow(self) -> tuple[str, ...]:
        uri, port = self.tracking_uri, str(self.mlflow_port)
        return ("ui", "--backend-store-uri", uri, "--port", port)


def _refuse_taken(port: int, flag: str) -> None:
    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        raise ConfigError(
            f"port {port} is taken, perhaps by another `evertrain ui`: name another with {flag}"
        ) from error


def _start(module: str, *arguments: str) -> subprocess.Popen[bytes]:
    """A server that says only what goes wrong."""
    return subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PREFECT_SERVER_ANALYTICS_ENABLED": "false"},
    )
