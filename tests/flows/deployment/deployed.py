"""A Prefect server with the deployments, what it knows of flow runs, and runs that stand still."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import httpx
import psutil
import yaml

from benchmarks.services import BIN, answers_at, free_port, wait_until_up
from evertrain_flows.cli.local_servers import KEPT_LEASES
from evertrain_flows.databases import create_prefect_database
from tests import commands, waiting
from tests.chaos.standing import HOLD, NOTES
from tests.flows.conftest import ROOT
from train_core.storage.coordination import lease
from train_core.storage.run_folder import RunFolder

Prefect = Callable[..., str]
DELIVERED = ROOT / "deployments/prefect.yaml"
AUTOMATIONS = ROOT / "deployments/automations.yaml"

DEPLOY_AGAIN = (
    "the deployment's entrypoint flows.retrain.retrain is that of an earlier evertrain: write "
    "evertrain_flows.retrain.retrain in your prefect.yaml, and deploy again: "
    "prefect --no-prompt deploy --all"
)
"""What a flow run of such a deployment logs."""

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
    command = [sys.executable, "-m", "prefect", *arguments]
    process = commands.begin(command, log, cwd=ROOT, env=environment)
    try:
        yield process
    finally:
        # A worker whose server was restarted meanwhile does not end by itself.
        commands.end(process)


def kill_all(process: psutil.Process) -> None:
    """Kill the process and all below it, itself first: it would tell of the others' end."""
    below = process.children(recursive=True)
    for one in [process, *below]:
        with suppress(psutil.NoSuchProcess):
            one.kill()
    psutil.wait_procs(below, timeout=10)


def hasty_automations(folder: Path, missed_s: float) -> Path:
    """The automations that are delivered, with less patience for a heartbeat."""
    text = AUTOMATIONS.read_text()
    assert text.count("within: 600") == 1
    file = folder / "automations.yaml"
    file.write_text(text.replace("within: 600", f"within: {missed_s:g}"))
    return file


class Server:
    """A Prefect server that runs while it is entered; it can be stopped, or killed, meanwhile."""

    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        self._port = str(free_port())
        self.url = f"http://127.0.0.1:{self._port}/api"
        self._home, self._environment = home, KEPT_LEASES | environment
        self._running = ExitStack()

    def start(self) -> None:
        # Prefect would migrate an empty one, for minutes on a machine that is busy.
        create_prefect_database(self._environment)
        server, log = ("server", "start", "--port", self._port), self._home / "server.log"
        started = running(*server, environment=self._environment, log=log)
        process = self._running.enter_context(started)
        self._process = psutil.Process(process.pid)
        wait_until_up(lambda: answers_at(f"{self.url}/health"), log, process)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def kill(self) -> None:
        """As `kill -9` does; to be started again."""
        kill_all(self._process)
        self._running.close()

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

    def prefect(self, *arguments: str, folder: Path = ROOT) -> str:
        """Run `prefect …` against the server in that folder; what it says."""
        return self._run("prefect", "--no-prompt", *arguments, folder=folder)

    def evertrain(self, *arguments: str) -> str:
        """Run `evertrain …` against the server; what it says."""
        return self._run("evertrain", *arguments, folder=ROOT)

    def _run(self, program: str, *arguments: str, folder: Path) -> str:
        done = commands.succeed([BIN / program, *arguments], cwd=folder, env=self._environment)
        return done.stdout

    def deploy(self, automations: Path = AUTOMATIONS, file: Path = DELIVERED) -> None:
        """Deploy what is delivered, or else a file that lies elsewhere, from its own folder."""
        self.prefect("work-pool", "create", "evertrain", "--type", "process")
        self.deploy_again(file)
        self.prefect("automation", "create", "--from-file", str(automations))

    def deploy_again(self, file: Path = DELIVERED) -> None:
        folder = ROOT if file == DELIVERED else file.parent
        self.prefect("deploy", "--all", "--prefect-file", str(file), folder=folder)

    def schedules(self) -> list[dict[str, Any]]:
        url = f"{self._environment['PREFECT_API_URL']}/deployments/name/retrain/retrain"
        found: list[dict[str, Any]] = got(url)["schedules"]
        return found

    def schedule(self, *when: str) -> str:
        """Give the deployment `retrain` a schedule, as an operator does; the schedule's id."""
        options = ("--replace", "--accept-yes", *when)
        self.prefect("deployment", "schedule", "create", "retrain/retrain", *options)
        (schedule,) = self.schedules()
        return str(schedule["id"])

    def switch_off(self, schedule: str) -> None:
        self.prefect("deployment", "schedule", "pause", "retrain/retrain", schedule)

    def worker(self, pool: str = "evertrain") -> AbstractContextManager[subprocess.Popen[bytes]]:
        command = ("worker", "start", "--pool", pool)
        return running(*command, environment=self._environment, log=self._log)


def own_prefect_file(folder: Path, **parameters: Any) -> Path:
    """A copy of the delivered prefect.yaml outside of the checkout, with parameters of its own."""
    text = DELIVERED.read_text()
    deployed = yaml.safe_load(text)
    (retrain,) = (one for one in deployed["deployments"] if one["name"] == "retrain")
    retrain["parameters"]["parameters"] = parameters
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "prefect.yaml"
    file.write_text(yaml.safe_dump(deployed))
    return file


def filtered(api: str, kind: str, **asked: Any) -> list[dict[str, Any]]:
    """What the server lists of a kind: `flow_runs`, `artifacts`, `logs`, …"""
    listed: list[dict[str, Any]] = posted(api, f"{kind}/filter", asked)
    return listed


def got(url: str) -> Any:
    """The server's answer to a GET."""
    return httpx.get(url, timeout=60).raise_for_status().json()


def posted(api: str, path: str, body: object) -> Any:
    """The server's answer to a POST of JSON; None if it has no content."""
    answer = httpx.post(f"{api}/{path}", json=body, timeout=60).raise_for_status()
    return answer.json() if answer.content else None


def found(api: str, kind: str, flow_run: str) -> list[dict[str, Any]]:
    """What the server has of a kind (`artifacts`, `logs`) for the flow run of that name."""
    (run,) = flow_runs(api, flow_run)
    if kind == "logs":
        return filtered(api, kind, logs={"flow_run_id": {"any_": [run["id"]]}})
    return filtered(api, kind, flow_runs={"id": {"any_": [run["id"]]}})


def errors_in(log: Path) -> list[str]:
    """The errors that a server or a worker of Prefect's logs.

    On a busy machine SQLite is locked at times, as Prefect's server reads and writes in one
    transaction; what it did not write then, it is sent or tries again.
    """
    records = re.split(r"(?m)^(?=\d\d:\d\d:\d\d\.\d{3} \| )", log.read_text())
    return [
        one for one in records if re.match(r"\S+ \| ERROR", one) and "database is locked" not in one
    ]


def scheduled_runs(api: str) -> list[dict[str, Any]]:
    """The flow runs that a schedule made, in the order in which they are due."""
    listed = filtered(api, "flow_runs", sort="EXPECTED_START_TIME_ASC")
    return [one for one in listed if one["auto_scheduled"]]


def states_of(api: str, flow_run_id: str) -> list[dict[str, Any]]:
    """All states that a flow run had, in their order."""
    listed = got(f"{api}/flow_run_states/?flow_run_id={flow_run_id}")
    return sorted(listed, key=lambda one: str(one["timestamp"]))


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


def flow_of(folder: RunFolder) -> psutil.Process:
    """The process that runs the flow: the parent of the run's driver."""
    holder = lease.holder_of(folder.store)
    assert holder is not None
    parent = psutil.Process(holder.pid).parent()
    assert parent is not None
    return parent


def wait_for(what: Callable[[], object], home: Path, within_s: float = 150) -> None:
    """Wait until it is true; if it never is, show what the server and the worker say."""

    def told() -> str:
        logs = sorted(home.glob("*.log"))
        return "".join(f"{log.name}:\n{log.read_text()[-3000:]}" for log in logs)

    waiting.wait_for(what, within_s, told, every_s=0.2)


def flow_runs(api: str, run: str) -> list[dict[str, Any]]:
    return filtered(api, "flow_runs", flow_runs={"name": {"any_": [run]}})


def all_flow_runs(api: str) -> list[dict[str, Any]]:
    """All flow runs, oldest first."""
    return sorted(filtered(api, "flow_runs"), key=lambda one: str(one["created"]))


def state(api: str, run: str) -> str:
    return str(flow_runs(api, run)[-1]["state_type"])


def message(api: str, run: str) -> str:
    """What the run's state says of itself."""
    return str(flow_runs(api, run)[-1]["state"]["message"])


def log_of(api: str, run: str) -> str:
    return "\n".join(one["message"] for one in found(api, "logs", run))
