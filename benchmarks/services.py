"""Servers that are already running in production: Prefect's, MLflow's, and a Ray cluster."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psutil

from evertrain_flows.databases import create_prefect_database, create_tracking_database

BIN = Path(sys.executable).parent
ROOT = Path(__file__).parents[1]
ANSWERS_WITHIN_S = 180
"""Beside other work on two cores a server needs more than a minute to begin."""


def free_port() -> int:
    """A port that nobody listens on, below those that the kernel gives to whoever asks for any."""
    for port in random.SystemRandom().sample(range(20000, 32000), 100):
        with socket.socket() as listening, contextlib.suppress(OSError):
            listening.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no port is free")


@contextlib.contextmanager
def server(command: list[str], url: str, log: Path, **environment: str) -> Iterator[None]:
    """A process that answers at `url`; ended by its pid."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **environment}
        )
    try:
        deadline = time.monotonic() + ANSWERS_WITHIN_S
        while True:
            try:
                urllib.request.urlopen(url, timeout=2).close()
                break
            except OSError:
                if process.poll() is not None or time.monotonic() > deadline:
                    raise RuntimeError(f"no answer from {url}:\n{log.read_text()}") from None
                time.sleep(0.2)
        yield
    finally:
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


@contextlib.contextmanager
def prefect_server(folder: Path, port: int = 0, **settings: str) -> Iterator[str]:
    """The API address of a Prefect server with these settings; port 0 takes a free one."""
    port = port or free_port()
    url = f"http://127.0.0.1:{port}/api"
    home = {"PREFECT_HOME": str(folder / "prefect-server"), "PREFECT_SERVER_ANALYTICS_ENABLED": "0"}
    create_prefect_database(home)
    home |= settings
    command = [str(BIN / "prefect"), "server", "start", "--port", str(port)]
    with server(command, f"{url}/health", folder / "prefect.log", **home):
        yield url


@contextlib.contextmanager
def mlflow_server(folder: Path, port: int = 0) -> Iterator[str]:
    """The address of an MLflow server on SQLite; port 0 takes a free one."""
    port = port or free_port()
    url = f"http://127.0.0.1:{port}"
    database = f"sqlite:///{folder}/mlflow-server.db"
    create_tracking_database(database)
    command = [
        *(str(BIN / "mlflow"), "server", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", database),
        *("--artifacts-destination", str(folder / "mlflow-artifacts")),
    ]
    # It would start a dozen processes that wait for jobs; nobody submits one.
    with server(
        command, f"{url}/health", folder / "mlflow.log", MLFLOW_SERVER_ENABLE_JOB_EXECUTION="false"
    ):
        yield url


@contextlib.contextmanager
def ray_cluster(folder: Path, *options: str) -> Iterator[str]:
    """The address of a Ray cluster of this machine, started with `options` of `ray start`."""
    port, dashboard_port, agent_port = free_port(), free_port(), free_port()
    command = [
        *(str(BIN / "ray"), "start", "--head", "--block", f"--port={port}"),
        *(
            f"--dashboard-port={dashboard_port}",
            f"--dashboard-agent-listen-port={agent_port}",
            f"--temp-dir={folder}/ray",
            "--disable-usage-stats",
            *options,
        ),
    ]
    with (folder / "ray.log").open("w") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=output,
            # A job of it is started as `python`. Ray's workers would give way to every other
            # process (niceness 15), which on a machine that is busy means that they do not begin.
            env={
                **os.environ,
                "RAY_worker_niceness": "0",
                # The checkout has `flows/` and `tasks/`, as a user's project may.
                "PYTHONPATH": f"{ROOT}/importable:{ROOT}",
                "PATH": f"{BIN}:{os.environ['PATH']}",
            },
        )
    try:
        deadline = time.monotonic() + 60
        while "Ray runtime started" not in (folder / "ray.log").read_text():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"Ray did not start:\n{(folder / 'ray.log').read_text()}")
            time.sleep(0.2)
        yield f"127.0.0.1:{port}"
    finally:
        # Ray's own way to end waits for half a minute; nothing here has to be kept.
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        process.kill()
        process.wait()
