"""The deployment as an operator uses it: a real server, a real worker, and a run."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import psutil
import pytest

from benchmarks.services import ray_cluster
from tests.chaos.held import HOLD, NOTES
from tests.engine import alone
from tests.engine.digests import digest_of_training
from tests.flows.conftest import ROOT
from tests.flows.mlflow_side import runs_in, shown_at
from train_core import TrainConfig
from train_core.storage import lease
from train_core.storage.run_folder import RunFolder
from train_core.storage.stop import stop_request

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

Prefect = Callable[..., str]


@contextmanager
def running(*arguments: str, environment: dict[str, str], log: Path) -> Iterator[None]:
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
            yield
        finally:
            process.terminate()


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


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """A server that was restarted is another process; it ends with its fixture."""


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


@pytest.fixture(scope="module")
def server(home: Path, environment: dict[str, str]) -> Iterator[Server]:
    found = Server(home, environment)
    found.start()
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="module")
def api(server: Server) -> str:
    """The API's URL of a Prefect server."""
    return server.url


@pytest.fixture(scope="module")
def prefect(api: str, home: Path, environment: dict[str, str]) -> Iterator[Prefect]:
    """Runs `prefect …` against the server, with a worker that waits for runs."""
    there = {
        **environment,
        "PREFECT_API_URL": api,
        "EVERTRAIN_STORAGE": str(home / "runs"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{home}/mlflow.db",
        # What the runs of HeldDigits obey.
        HOLD: "mid-epoch@0",
        NOTES: str(home / "notes"),
    }

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "prefect", "--no-prompt", *arguments],
            cwd=ROOT,
            env=there,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run("work-pool", "create", "evertrain", "--type", "process")
    run("deploy", "--all", "--prefect-file", "deployments/prefect.yaml")
    run("automation", "create", "--from-file", "deployments/automations.yaml")
    worker = ("worker", "start", "--pool", "evertrain")
    with running(*worker, environment=there, log=home / "worker.log"):
        yield run


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


def test_both_flows_are_deployed_and_the_schedule_sleeps(prefect: Prefect) -> None:
    found = json.loads(prefect("deployment", "inspect", "retrain/retrain", "-o", "json"))
    assert [schedule["active"] for schedule in found["schedules"]] == [False]
    assert found["global_concurrency_limit"]["limit"] == 1
    assert found["concurrency_options"]["collision_strategy"] == "ENQUEUE"
    assert "batch-inference/batch-inference" in prefect("deployment", "ls")


def test_a_workers_run_is_named_as_asked_or_after_its_flow_run(
    prefect: Prefect, home: Path
) -> None:
    asked = {"run": "nightly-1", "epochs": 1, "batch_size": 64}
    for parameters in (asked, {**asked, "run": ""}):
        prefect(
            "deployment", "run", "retrain/retrain", "--flow-run-name", "by-hand",
            "--param", f"parameters={json.dumps(parameters)}", "--watch",
        )  # fmt: skip
    first, second = sorted(one.name for one in (home / "runs").iterdir())
    assert re.fullmatch("by-hand-[0-9a-f]{8}", first)
    assert second == "nightly-1"
    for run in (first, second):
        report = RunFolder(str(home / "runs"), run).report()
        assert report is not None, (home / "worker.log").read_text()
        assert report["run"] == run


def test_the_flow_runs_page_has_the_artifacts_and_the_workers_log(
    prefect: Prefect, api: str
) -> None:
    artifacts = {one["key"]: str(one["data"]) for one in found(api, "artifacts", "nightly-1")}
    assert set(artifacts) >= {"progress-nightly-1", "checkpoints-nightly-1", "report-nightly-1"}
    assert "step-00000020-a0001" in artifacts["checkpoints-nightly-1"]
    assert "data:image/png;base64," in artifacts["report-nightly-1"]
    messages = [one["message"] for one in found(api, "logs", "nightly-1")]
    assert any("epoch 1, step 20: " in message for message in messages)


def test_the_best_checkpoint_scores_data_in_a_flow_of_its_own(prefect: Prefect) -> None:
    shown = prefect(
        "deployment", "run", "batch-inference/batch-inference",
        "--param", 'run="nightly-1"', "--param", 'infer_input="validation"', "--watch",
    )  # fmt: skip
    assert "finished" in shown.lower()


def test_what_an_mlflow_missed_is_sent_by_a_flow_of_its_own(prefect: Prefect, home: Path) -> None:
    # One that was down all the time.
    another = f"sqlite:///{home}/another.db"
    shown = prefect(
        "deployment", "run", "mirror/mirror", "--param", 'run="nightly-1"',
        "--param", f"tracking_uri={json.dumps(another)}", "--watch",
    )  # fmt: skip
    assert "finished" in shown.lower()
    url = RunFolder(str(home / "runs"), "nightly-1").url
    assert shown_at(another, url) == shown_at(f"sqlite:///{home}/mlflow.db", url)


HELD = {
    "workload": "tests.chaos.held:HeldDigits",
    "epochs": 3,
    "batch_size": 64,
    "num_shards": 2,
    "checkpoint_every_steps": 7,
    "checkpoint_backpressure": "wait",
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What becomes of such a training if nobody holds it."""
    folder = RunFolder(str(tmp_path_factory.mktemp("undisturbed")), "run")
    alone.run(folder, **HELD | {"eval_batch_size": TrainConfig().eval_batch_size})
    return digest_of_training(folder)


def test_mnist_reaches_its_accuracy(prefect: Prefect, home: Path, real_data: Path) -> None:
    parameters = {
        "run": "mnist",
        "workload": "train_core.workloads.mnist:MnistResNet18",
        "settings": {"data": str(real_data / "mnist")},
        "num_workers": 2,
    }
    prefect(
        "deployment", "run", "retrain/retrain",
        "--param", f"parameters={json.dumps(parameters)}", "--watch",
    )  # fmt: skip
    report = RunFolder(str(home / "runs"), "mnist").report()
    assert report is not None, (home / "worker.log").read_text()
    assert report["train"]["epoch"] == 1
    assert report["test_metrics"]["accuracy"] >= 0.985


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
    listed = json.dumps({"flow_runs": {"name": {"any_": [run]}}}).encode()
    asked = urllib.request.Request(
        f"{api}/flow_runs/filter", listed, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(asked, timeout=10) as answer:
        found: list[dict[str, Any]] = json.load(answer)
        return found


def state(api: str, run: str) -> str:
    return str(flow_runs(api, run)[-1]["state_type"])


def log_of(api: str, run: str) -> str:
    return "\n".join(one["message"] for one in found(api, "logs", run))


def flow_of(folder: RunFolder) -> psutil.Process:
    """The process that runs the flow: the parent of the run's driver."""
    holder = lease.holder_of(folder.store)
    assert holder is not None
    parent = psutil.Process(holder.pid).parent()
    assert parent is not None
    return parent


def test_a_run_whose_process_dies_is_run_again_by_the_automation(
    prefect: Prefect, api: str, home: Path, undisturbed: str
) -> None:
    with held(prefect, home, "crashed") as (folder, go_on):
        flow_of(folder).kill()
        go_on.touch()
        wait_for(lambda: folder.report() is not None, home)
        wait_for(lambda: state(api, "crashed") == "COMPLETED", home)
    assert digest_of_training(folder) == undisturbed
    newest = folder.checkpoints()[-1]
    assert (newest.manifest.step, newest.name.attempt) == (60, 2)


def test_a_run_that_is_cancelled_saves_and_goes_on_later(
    prefect: Prefect, api: str, home: Path, undisturbed: str
) -> None:
    with held(prefect, home, "cancelled") as (folder, go_on):
        (flow_run,) = flow_runs(api, "cancelled")
        prefect("flow-run", "cancel", flow_run["id"])
        wait_for(lambda: "asked to stop: " in log_of(api, "cancelled"), home)
        go_on.touch()
        wait_for(lambda: state(api, "cancelled") == "CANCELLED", home)
        assert lease.holder_of(folder.store) is None
        last = folder.checkpoints()[-1].manifest
        assert (31 < last.step < 60, last.stopped_by) == (True, "request")
        prefect("flow-run", "retry", flow_run["id"])
        wait_for(lambda: state(api, "cancelled") == "COMPLETED", home)
    # Prefect may crash it once more, over the slot of the deployment's limit that it has just given
    # free, and the automation run it again: how many attempts there were is not ours to say.
    assert folder.checkpoints()[-1].manifest.step == 60
    assert digest_of_training(folder) == undisturbed


def test_a_run_survives_a_restart_of_the_server(
    prefect: Prefect, server: Server, home: Path, undisturbed: str
) -> None:
    with held(prefect, home, "serverless") as (folder, go_on):
        server.stop()
        go_on.touch()
        wait_for(lambda: (folder.live() or {}).get("step", 0) >= 45, home)
        server.start()
        wait_for(lambda: folder.report() is not None, home)
        wait_for(lambda: state(server.url, "serverless") == "COMPLETED", home)
    assert digest_of_training(folder) == undisturbed
    newest = folder.checkpoints()[-1]
    assert (newest.manifest.step, newest.name.attempt) == (60, 1)


@pytest.fixture(scope="module")
def cluster(home: Path) -> Iterator[str]:
    """The address of a Ray cluster whose workers obey as those of a Ray of our own."""
    told = {HOLD: "mid-epoch@0", NOTES: str(home / "notes")}
    with (
        TemporaryDirectory(prefix="ray-") as folder,
        patch.dict(os.environ, told),
        ray_cluster(Path(folder), "--num-cpus=2") as address,
    ):
        yield address


def flow_that_asks() -> psutil.Process:
    """The process of the flow whose run is driven by a job: the parent of what talks to it."""
    (talking,) = [
        process
        for process in psutil.Process().children(recursive=True)
        if "train_core.engine.driver_process" in process.cmdline()
    ]
    parent = talking.parent()
    assert parent is not None
    return parent


def test_a_flow_that_is_moved_leaves_its_job_alone_and_attaches_again(
    prefect: Prefect, api: str, home: Path, cluster: str
) -> None:
    with held(prefect, home, "moved", ray_address=cluster) as (folder, go_on):
        flow_that_asks().terminate()
        wait_for(lambda: state(api, "moved") != "RUNNING", home)
        # The job trains on, and has not been asked for anything.
        assert lease.holder_of(folder.store) is not None
        assert stop_request(folder.store, 1) is None
        wait_for(lambda: state(api, "moved") == "RUNNING", home)
        go_on.touch()
        wait_for(lambda: state(api, "moved") == "COMPLETED", home)
    newest = folder.checkpoints()[-1]
    assert (newest.manifest.step, newest.name.attempt) == (60, 1)
    (link,) = {
        str(one["data"])
        for one in found(api, "artifacts", "moved")
        if one["key"] == "ray-job-moved"
    }
    assert "/#/jobs/moved-a0001-" in link
    (shown,) = {
        run.data.tags.get("evertrain.ray_job")
        for run in runs_in(f"sqlite:///{home}/mlflow.db", folder.url)
        if run.data.tags["evertrain.stage"] == "pipeline"
    }
    assert shown is not None
    assert "/#/jobs/moved-a0001-" in shown


def test_a_flow_that_is_cancelled_ends_its_job(
    prefect: Prefect, api: str, home: Path, cluster: str
) -> None:
    with held(prefect, home, "called-off", ray_address=cluster) as (folder, go_on):
        (flow_run,) = flow_runs(api, "called-off")
        prefect("flow-run", "cancel", flow_run["id"])
        wait_for(lambda: "asked to stop: " in log_of(api, "called-off"), home)
        go_on.touch()
        wait_for(lambda: state(api, "called-off") == "CANCELLED", home)
    assert lease.holder_of(folder.store) is None
    last = folder.checkpoints()[-1].manifest
    assert (31 < last.step < 60, last.stopped_by) == (True, "request")
