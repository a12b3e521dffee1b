"""A Prefect server with the deployments, what it knows of flow runs, and runs that stand still."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

from tests.chaos.standing import HOLD, NOTES
from tests.flows.conftest import ROOT
from train_core.storage.run_folder import RunFolder

Prefect = Callable[..., str]
ORDERLY_END_S = 30

HELD = {
    "workload": "tests.chaos.held:HeldDigits",
    "epochs": 3,
    "batch_size": 64,
    "num_shards": 2,
    "checkpoint_every_steps": 7,
    "checkpoint_backpressure": "wait",
}


@contextmanager
def running(
    *arguments: str, environment: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    with (
        log.open("w") as output,
        subprocess.Popen(
            [sys.executable, "-m", "prefect", *arguments],
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(ORDERLY_END_S)
            except subprocess.TimeoutExpired:
                # A worker whose server was restarted meanwhile does not end.
                process.kill()


def wait_until_healthy(url: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(f"{url}/health", timeout=5):
                return
        except urllib.error.URLError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)


class Server:
    """A Prefect server that can be stopped and started again."""

    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = str(free.getsockname()[1])
        self.url = f"http://127.0.0.1:{self._port}/api"
        self._home, self._environment = home, environment
        self._running = ExitStack()

    def start(self) -> None:
        server, log = ("server", "start", "--port", self._port), self._home / "server.log"
        self._running.enter_context(running(*server, environment=self._environment, log=log))
        wait_until_healthy(self.url)

    def stop(self) -> None:
        self._running.close()


class Site:
    """The deployments at a server, where flow runs find all that is theirs in `home`."""

    def __init__(self, home: Path, environment: dict[str, str], api: str) -> None:
        self._log = home / "worker.log"
        self._environment = {
            **environment,
            "PREFECT_API_URL": api,
            "EVERTRAIN_STORAGE": str(home / "runs"),
            "MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db",
            # What the runs of HeldDigits obey.
            HOLD: "mid-epoch@0",
            NOTES: str(home / "notes"),
        }

    def prefect(self, *arguments: str) -> str:
        """Run `prefect …` against the server; what it says."""
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
            cwd=ROOT,
            env=self._environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def deploy(self, automations: Path = ROOT / "deployments/automations.yaml") -> None:
        self.prefect("work-pool", "create", "evertrain", "--type", "process")
        self.prefect("deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
        self.prefect("automation", "create", "--from-file", str(automations))

    def worker(self) -> AbstractContextManager[subprocess.Popen[bytes]]:
        """A worker that waits for runs."""
        command = ("worker", "start", "--pool", "evertrain")
        return running(*command, environment=self._environment, log=self._log)


def found(api: str, kind: str, flow_run: str) -> list[dict[str, Any]]:
    """What the server has of a kind (`artifacts`, `logs`) for the flow run of that name."""

    def filtered(kind: str, **asked: Any) -> list[dict[str, Any]]:
        request = urllib.request.Request(
            f"{api}/{kind}/filter",
            json.dumps(asked).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            listed: list[dict[str, Any]] = json.load(answer)
            return listed

    (run,) = filtered("flow_runs", flow_runs={"name": {"any_": [flow_run]}})
    if kind == "logs":
        return filtered(kind, logs={"flow_run_id": {"any_": [run["id"]]}})
    return filtered(kind, flow_runs={"id": {"any_": [run["id"]]}})


@contextmanager
def held(prefect: Prefect, home: Path, run: str, **more: Any) -> Iterator[tuple[RunFolder, Path]]:
    """A worker's run that stands still after a step, and the file that lets it go on."""
    notes, folder = home / "notes", RunFolder(str(home / "runs"), run)
    notes.mkdir()
    parameters = {"run": run, **HELD, **more}
    prefect(
        "deployment", "run", "retrain/retrain", "--param", f"parameters={json.dumps(parameters)}"
    )
    wait_for((notes / "held").exists, home)
    try:
        yield folder, notes / "go-on"
    finally:
        shutil.rmtree(notes)


def wait_for(what: Callable[[], object], home: Path, within_s: float = 150) -> None:
    deadline = time.monotonic() + within_s
    while not what():
        assert time.monotonic() < deadline, (home / "worker.log").read_text()[-3000:]
        time.sleep(0.2)


def flow_runs(api: str, run: str) -> list[dict[str, Any]]:
    """The flow runs of that name."""
    return _flow_runs(api, {"flow_runs": {"name": {"any_": [run]}}})


def all_flow_runs(api: str) -> list[dict[str, Any]]:
    """All flow runs, oldest first."""
    return sorted(_flow_runs(api, {}), key=lambda one: str(one["created"]))


def _flow_runs(api: str, filters: dict[str, Any]) -> list[dict[str, Any]]:
    listed = json.dumps(filters).encode()
    asked = urllib.request.Request(
        f"{api}/flow_runs/filter", listed, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=10) as answer:
        found: list[dict[str, Any]] = json.load(answer)
        return found


def state(api: str, run: str) -> str:
    return str(flow_runs(api, run)[-1]["state_type"])


def message(api: str, run: str) -> str:
    """What the run's state says of itself."""
    return str(flow_runs(api, run)[-1]["state"]["message"])


def log_of(api: str, run: str) -> str:
    return "\n".join(one["message"] for one in found(api, "logs", run))
