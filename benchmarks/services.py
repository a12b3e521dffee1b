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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import psutil

from evertrain_flows.cli.local_servers import KEPT_LEASES
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


def wait_until_up(
    answers: Callable[[], bool], log: Path, process: subprocess.Popen[bytes] | None = None
) -> None:
    """Wait until a server answers what is asked of it. Raises RuntimeError if it never does.

    No server is handed out before: a line in its log or an open port says less than an answer.
    """
    deadline = time.monotonic() + ANSWERS_WITHIN_S
    while not answers():
        has_ended = process is not None and process.poll() is not None
        if has_ended or time.monotonic() > deadline:
            raise RuntimeError(f"it does not answer:\n{log.read_text()}")
        time.sleep(0.2)


def answers_at(url: str) -> bool:
    """Whether a server answers there, and well."""
    try:
        with urllib.request.urlopen(url, timeout=5):
            return True
    except OSError:
        return False


_ASK_RAY = """
import sys, time
from urllib.request import urlopen
from train_core.client.carriers.ray_jobs import RayJobs
from train_core.errors import ResourceError

address, agent = sys.argv[1:]

def answers():
    try:
        # Nobody has such a job, which is an answer; None is none.
        if RayJobs(address).has_ended("no-such-job") is None:
            return False
        # The agent of the head starts the jobs.
        urlopen(agent, timeout=5).close()
    except (ResourceError, OSError):
        return False
    return True

while not answers():
    time.sleep(0.2)
"""


def wait_until_ray_takes_jobs(
    address: str,
    agent: str,
    log: Path,
    process: subprocess.Popen[bytes],
    environment: Mapping[str, str],
    within: Callable[..., Sequence[str]] = lambda *command: command,
) -> None:
    """Wait until the cluster at `address`, whose head's agent listens at `agent`, takes jobs.

    It is asked by our own client, in a process of its own: Ray reads its login once. `within` makes
    of a command one that runs where the cluster is reached.
    """
    command = within(sys.executable, "-c", _ASK_RAY, address, f"http://{agent}/api/healthz")
    with subprocess.Popen(command, env={**environment, "PYTHONPATH": str(ROOT)}) as asking:
        try:
            wait_until_up(lambda: asking.poll() is not None, log, process)
        finally:
            asking.kill()
    if asking.returncode:
        raise RuntimeError("Ray was not asked whether it takes jobs: see what is printed above")


@contextlib.contextmanager
def server(command: list[str], url: str, log: Path, **environment: str) -> Iterator[None]:
    """A process that answers at `url`; ended by its pid."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=output, env={**os.environ, **environment}
        )
    try:
        wait_until_up(lambda: answers_at(url), log, process)
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
    home |= KEPT_LEASES | settings
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
    # A job of it is started as `python`. Ray's workers would give way to every other process
    # (niceness 15), which on a machine that is busy means that they do not begin.
    environment = {
        **os.environ,
        "RAY_worker_niceness": "0",
        # The checkout has `flows/` and `tasks/`, as a user's project may.
        "PYTHONPATH": f"{ROOT}/importable:{ROOT}",
        "PATH": f"{BIN}:{os.environ['PATH']}",
    }
    address, agent, log = f"127.0.0.1:{port}", f"127.0.0.1:{agent_port}", folder / "ray.log"
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        wait_until_ray_takes_jobs(address, agent, log, process, environment)
        yield address
    finally:
        # Ray's own way to end waits for half a minute; nothing here has to be kept.
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in psutil.Process(process.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    one.kill()
        process.kill()
        process.wait()
