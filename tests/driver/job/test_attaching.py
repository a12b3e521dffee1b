"""Training as a job of a real Ray cluster: it outlives who asked for it, and is attached to."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch
from urllib.parse import urlsplit

import psutil
import pytest

from benchmarks.services import ray_cluster
from evertrain_flows.parameters import RetrainParameters
from tests.asked import asking, infer, train
from tests.chaos.standing import HOLD, NOTES
from tests.flows.mlflow_side import shown_at
from tests.rank.alone import run
from tests.rank.digests import digest_of_training
from tests.storage.doubles.fault_proxy import Fault, FaultProxy, Kind
from tests.waiting import wait_for
from tests.web import refusing_proxy
from train_core import TrainConfig
from train_core.client.carriers.job import JobCarrier
from train_core.client.carriers.ray_jobs import RayJobs
from train_core.client.driver_handle import Driver
from train_core.errors import (
    ConfigError,
    JobEndedError,
    ResourceError,
    RunBusyError,
    StoppedError,
    StorageError,
)
from train_core.requests import DriverRequest, ScoringRequest
from train_core.stages import INFER, PUBLISH, TRAIN
from train_core.storage.cleanup.orphans import find_orphans
from train_core.storage.coordination import job_mailbox, lease, pins
from train_core.storage.objects.store import Store
from train_core.storage.run_folder import RunFolder
from train_core.timing import TIMING

# The cluster's own look for them is enough.
pytestmark = [pytest.mark.timeout(600), pytest.mark.leaves]

CONFIG: dict[str, Any] = {
    "workload": "tests.rank.tiny:Waiting",
    "batch_size": 32,
    "eval_batch_size": 16,
    "num_workers": 2,
    "epochs": 2,
    "cpus_per_worker": 0.5,
    "gpus_per_worker": 0,
    "checkpoint_every_steps": 2,
    "checkpoint_backpressure": "wait",
    "keep_last": 99,
}
HELD_AFTER = 3
AWAY = Fault(Kind.REFUSE, times=math.inf, status="503 Service Unavailable", body=b"away")


class Amendment:
    """A run that waits after a step until it may go on."""

    def __init__(
        self, address: str, home: Path, tracking_uri: str = "", storage: str = "", **more: Any
    ) -> None:
        self.go_on = home / "go-on"
        self.log: list[str] = []
        storage = storage or str(home / "runs")
        settings = {"scratch": str(home)}
        config = CONFIG | {"ray_address": address, "settings": settings, **more}
        # As `evertrain runs resume` asks, which writes out what the run decided.
        self.request = RetrainParameters(
            storage=storage, run="run", tracking_uri=tracking_uri, **config
        ).request()
        self.folder = RunFolder(self.request.storage, "run")
        self.trained: Future[Any]

    @contextmanager
    def training(self, given: Driver | None = None) -> Iterator[Driver]:
        """A driver whose training is held."""
        with given or Driver.start(self.request, self.log.append) as driver:
            driver.prepared()
            self.trained = asking(driver, TRAIN, TRAIN.arguments())
            wait_for(lambda: (self.folder.live() or {}).get("step") == HELD_AFTER - 1, 240)
            assert not self.trained.done()
            yield driver

    def job(self) -> str:
        (job,) = job_mailbox.jobs_with_calls(self.folder.store)
        return job


def process_of(job: str) -> psutil.Process:
    (found,) = [
        process
        for process in psutil.process_iter(["cmdline"])
        if (process.info["cmdline"] or [])[6:7] == [job]
    ]
    return found


LIST_WORKERS = """
from ray.util.state import list_actors
for actor in list_actors(sys.argv[1], [("class_name", "=", "TrainWorker")]):
    print(actor.state)
"""


def said_by_ray(program: str, address: str) -> str:
    """What it prints. Ray reads whether a cluster asks for a token when it is imported, once."""
    return subprocess.check_output(
        [sys.executable, "-c", f"import sys{program}", address],
        env=os.environ | {"RAY_AUTH_MODE": "token"},
        text=True,
    )


def dashboard_of(ray_address: str) -> str:
    url, _, _ = RayJobs(ray_address).url("").partition("/#")
    return url


@pytest.mark.slow
def test_a_job_is_submitted_once_followed_and_told_the_end_of(ray_address: str) -> None:
    jobs, job = RayJobs(ray_address), f"job-{uuid.uuid4().hex}"
    assert jobs.has_ended(job)
    says, says_each = ["sh", "-c", "echo one; sleep 2; echo two"], ["one", "two"]
    assert jobs.submit(job, says, {})
    assert not jobs.submit(job, says, {})
    printed: list[str] = []
    jobs.follow(job, printed.append, threading.Event())
    # Between them Ray may print a line of its own.
    assert [line for line in "".join(printed).split("\n") if line in says_each] == says_each
    assert jobs.has_ended(job)
    assert not jobs.is_running(job)
    assert jobs.end_of(job).startswith(f"job {job} SUCCEEDED")
    with pytest.raises(ResourceError, match="Ray does not take the"):
        jobs.submit("another", says, {"working_dir": "/nowhere"})
    assert jobs.has_ended("another")


@pytest.fixture
def asked(ray_address: str, tmp_path: Path) -> Amendment:
    return Amendment(ray_address, tmp_path)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = RunFolder(str(tmp_path_factory.mktemp("undisturbed")), "run")
    run(folder, **CONFIG | {"num_workers": 1, "num_shards": 2})
    return digest_of_training(folder)


MINE = """
import os
from tests.rank.tiny import Waiting
from tests.waiting import wait_for

class Mine(Waiting):
    def model(self):
        assert os.environ["COLOUR"] == "red"
        assert "mine.py" in os.listdir()
        return super().model()
"""


@pytest.fixture
def asked_of_a_proxy() -> Iterator[list[str]]:
    """What a proxy of the environment is asked for, of this machine."""
    with refusing_proxy() as (proxy, requests), patch.dict(os.environ, {"HTTP_PROXY": proxy}):
        for name in ("NO_PROXY", "no_proxy"):
            os.environ.pop(name, None)
        yield requests


@pytest.mark.slow
@pytest.mark.promise("job-outlives-caller", "cluster-other-wish", "cluster-code", "loopback-direct")
def test_the_job_goes_on_without_its_caller_and_the_next_one_attaches(
    ray_address: str, tmp_path: Path, undisturbed: str, asked_of_a_proxy: list[str]
) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/mine.py").write_text(MINE)
    # The code is the asking machine's, and the cluster has a GPU for one of the two workers only.
    runtime_env = {"working_dir": str(tmp_path / "code"), "env_vars": {"COLOUR": "red"}}
    asked = Amendment(
        ray_address,
        tmp_path,
        workload="mine:Mine",
        runtime_env=runtime_env,
        gpus_per_worker=None,
    )
    with asked.training() as driver:
        job = asked.job()
        assert job.startswith("run-a0001-")
        assert asked.folder.record().config.gpus_per_worker == 0
        # Who wants something else of the run meanwhile is refused.
        config = asked.request.config.model_copy(update={"epochs": 3})
        with (
            Driver.start(asked.request.model_copy(update={"config": config})) as second,
            pytest.raises(RunBusyError, match=f"{job}.* another epochs"),
        ):
            second.prepared()
        driver.detach()
    assert process_of(job).is_running()
    again = RetrainParameters.of_run(asked.folder, tracking_uri="").request()
    with Driver.start(again, print) as driver:
        prepared = driver.prepared()
        assert prepared.resumed
        assert prepared.job_url.endswith(f"/#/jobs/{job}")
        asked.go_on.touch()
        assert train(driver).step == 10
    # One attempt did it all, and nothing of the calls stays.
    assert lease.newest_attempt(asked.folder.store) == 1
    assert digest_of_training(asked.folder) == undisturbed
    wait_for(lambda: not job_mailbox.jobs_with_calls(asked.folder.store), 240)
    # A dashboard of this machine is asked directly. Prefect's clients of an earlier test in this
    # process may ask the proxy for their server.
    dashboard = urlsplit(prepared.job_url).netloc
    assert dashboard
    assert not [line for line in asked_of_a_proxy if dashboard in line]


@pytest.mark.slow
def test_the_workers_start_before_anybody_asks_for_the_training(
    asked: Amendment, ray_address: str
) -> None:
    cluster, num_workers = dashboard_of(ray_address), asked.request.config.num_workers
    with Driver.start(asked.request, print) as driver:
        driver.prepared()
        wait_for(lambda: said_by_ray(LIST_WORKERS, cluster).count("ALIVE") == num_workers, 240)


@pytest.mark.promise("job-dies")
@pytest.mark.slow
def test_a_job_that_dies_is_followed_by_another(asked: Amendment, undisturbed: str) -> None:
    with asked.training() as driver:
        job = asked.job()
        process_of(job).send_signal(signal.SIGKILL)
        with pytest.raises(JobEndedError, match=f"job {job} FAILED"):
            train(driver)
        assert not driver.is_alive
    asked.go_on.touch()
    # Another try, as a session makes it, has another driver, and so another job.
    with Driver.start(asked.request, print) as driver:
        assert train(driver).step == 10
        assert asked.job().startswith("run-a0002-")
    assert digest_of_training(asked.folder) == undisturbed


@pytest.mark.slow
def test_an_end_that_is_asked_for_is_orderly(asked: Amendment, undisturbed: str) -> None:
    with asked.training() as driver:
        training = asking(driver, TRAIN, TRAIN.arguments())
        closing = threading.Thread(target=driver.close, args=("KILLED",))
        closing.start()
        # A rank has heard it, in the step that is held.
        wait_for(lambda: any("asked to stop" in line for line in asked.log), 240)
        asked.go_on.touch()
        closing.join()
        with pytest.raises(StoppedError):
            training.result(0)
    stopped_at = asked.folder.checkpoints()[-1].manifest
    assert stopped_at.stopped_by == "request"
    with Driver.start(asked.request, print) as driver:
        assert train(driver).attempt == 2
    assert digest_of_training(asked.folder) == undisturbed


@pytest.mark.slow
def test_of_two_callers_the_last_one_ends_the_job(asked: Amendment, undisturbed: str) -> None:
    with asked.training() as first, Driver.start(asked.request, print) as second:
        job = asked.job()
        assert second.prepared().job_url.endswith(job)
        first.close("KILLED")
        assert process_of(job).is_running()
        asked.go_on.touch()
        assert train(second).step == 10
    assert lease.newest_attempt(asked.folder.store) == 1
    assert digest_of_training(asked.folder) == undisturbed
    wait_for(lambda: not job_mailbox.jobs_with_calls(asked.folder.store), 240)


@pytest.mark.slow
def test_a_job_that_nobody_comes_back_to_has_failed_in_mlflow(
    ray_address: str, tmp_path: Path
) -> None:
    mlflow = f"sqlite:///{tmp_path}/mlflow.db"
    asked = Amendment(ray_address, tmp_path, mlflow)
    with asked.training() as driver:
        driver.detach()
    (tmp_path / "go-on").touch()
    # It trains to the end, and then waits for somebody who wants the rest.
    process_of(asked.job()).wait(240)
    assert asked.folder.checkpoints()[-1].manifest.step == 10
    statuses = {
        stage: shown["status"] for stage, shown in shown_at(mlflow, asked.folder.url).items()
    }
    assert statuses == {"pipeline": "FAILED"}


@pytest.fixture
def dashboard(ray_address: str) -> Iterator[FaultProxy]:
    """What lies between a driver and the cluster's dashboard."""
    with FaultProxy(dashboard_of(ray_address)) as proxy:
        yield proxy


@pytest.mark.promise("dashboard-away")
@pytest.mark.slow
def test_a_training_goes_on_while_the_dashboard_is_away(
    dashboard: FaultProxy, tmp_path: Path, undisturbed: str
) -> None:
    asked = Amendment(dashboard.url, tmp_path)
    # A job that cannot be submitted is submitted again.
    dashboard.schedule.add(replace(AWAY, method="POST", target="/api/jobs", times=2))
    with asked.training() as driver:
        assert len(dashboard.schedule.hits) == 2
        dashboard.schedule.add(AWAY)
        # Longer than a job may be silent whose heart stands still.
        time.sleep(TIMING.callers.silent_s + 2 * TIMING.callers.job_poll_interval_s)
        asked.go_on.touch()
        assert train(driver).step == 10
    assert lease.newest_attempt(asked.folder.store) == 1
    assert digest_of_training(asked.folder) == undisturbed


@pytest.mark.slow
def test_a_job_that_dies_while_the_dashboard_is_away_is_missed_by_its_heart(
    dashboard: FaultProxy, tmp_path: Path, undisturbed: str
) -> None:
    asked = Amendment(dashboard.url, tmp_path)
    with asked.training() as driver:
        job = asked.job()
        dashboard.schedule.add(AWAY)
        process_of(job).send_signal(signal.SIGKILL)
        with pytest.raises(JobEndedError, match=f"job {job} ended, and nothing more is known"):
            train(driver)
        dashboard.schedule.clear()
    asked.go_on.touch()
    with Driver.start(asked.request, print) as driver:
        assert train(driver).attempt == 2
    assert digest_of_training(asked.folder) == undisturbed


class AwayStore(Store):
    """Whose storage refuses who has it while it is `away`."""

    away = threading.Event()

    def read(self, key: str, max_bytes: int | None = None) -> bytes:
        if self.away.is_set():
            raise StorageError("the storage is away")
        return super().read(key, max_bytes)

    def write(self, key: str, data: bytes, *, durable: bool = False) -> None:
        if self.away.is_set():
            raise StorageError("the storage is away")
        super().write(key, data, durable=durable)


@pytest.mark.slow
def test_a_job_that_dies_while_its_caller_cannot_reach_the_storage_is_missed(
    asked: Amendment, undisturbed: str
) -> None:
    mailbox = JobCarrier(asked.request, asked.log.append)
    mailbox._folder.store = AwayStore(asked.folder.url)
    with asked.training(Driver(asked.request, mailbox)):
        job = asked.job()
        AwayStore.away.set()
        process_of(job).send_signal(signal.SIGKILL)
        with pytest.raises(JobEndedError, match=f"job {job} FAILED"):
            asked.trained.result()
        AwayStore.away.clear()
    assert any("it is unknown whether train is done" in line for line in asked.log)
    asked.go_on.touch()
    with Driver.start(asked.request, print) as driver:
        assert train(driver).attempt == 2
    assert digest_of_training(asked.folder) == undisturbed


@pytest.mark.slow
def test_what_a_batch_inference_left_that_died_with_its_caller_goes_with_the_next(
    tmp_path: Path,
) -> None:
    # Who scores would use the GPU that the others' cluster says to have.
    with TemporaryDirectory(prefix="ray-") as ray, ray_cluster(Path(ray), "--num-cpus=2") as found:
        _kill_a_batch_inference_and_score_again(found, tmp_path)


def _kill_a_batch_inference_and_score_again(ray_address: str, tmp_path: Path) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    config = CONFIG | {"workload": "tests.chaos.held:HeldDigits", "epochs": 1, "keep_last": 1}
    trains = DriverRequest(
        storage=str(tmp_path / "runs"),
        run="run",
        config=TrainConfig(**config, ray_address=ray_address),
    )
    with Driver.start(trains, print) as driver:
        (last,) = train(driver).checkpoints
    scores = ScoringRequest(
        storage=trains.storage, run="run", config=trains.config, infer_input="test"
    )
    told = {"env_vars": {HOLD: "inference@0", NOTES: str(notes)}}
    held = scores.config.model_copy(update={"runtime_env": told})
    store = RunFolder(trains.storage, "run").store
    with Driver.start(scores.model_copy(update={"config": held}), print) as driver:
        driver.prepared()
        dying = asking(driver, INFER, INFER.arguments(checkpoint=last, source="test"))
        wait_for(lambda: (notes / "held").exists() or (dying.done() and dying.result()), 240)
        (job,) = job_mailbox.jobs_with_calls(store)
        process_of(job).kill()
        driver.detach()
    assert job_mailbox.jobs_with_calls(store) == [job]
    (pin,) = pins.pins_of(store, last.name)
    assert pin.pin is not None
    assert pin.pin.job == job
    (notes / "go-on").touch()
    with Driver.start(scores, print) as driver:
        assert infer(driver, last, "test").num_rows > 0
    wait_for(lambda: not job_mailbox.jobs_with_calls(store), 240)
    assert pins.pins_of(store, last.name) == []
    assert find_orphans(RunFolder(trains.storage, "run"), 99) == []


@pytest.mark.promise("cluster-capacity")
@pytest.mark.slow
def test_more_than_the_cluster_can_ever_give_is_refused_before_there_is_a_run(
    ray_address: str, tmp_path: Path
) -> None:
    config = TrainConfig(ray_address=ray_address, num_workers=3, gpus_per_worker=0)
    request = DriverRequest(storage=str(tmp_path), run="run", config=config)
    told = "1 node\\(s\\) with 2 CPU, enough for 2"
    with Driver.start(request) as driver, pytest.raises(ResourceError, match=told):
        driver.prepared()
    assert not RunFolder(str(tmp_path), "run").exists()


@pytest.mark.promise("cluster-addresses")
@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"storage": "s3://bucket/runs", "tracking_uri": "sqlite:///x.db"}, "on this machine"),
        ({"tracking_uri": "http://me:secret@127.0.0.1:1"}, "MLFLOW_TRACKING_PASSWORD"),
    ],
)
def test_what_means_nothing_elsewhere_is_refused(changes: dict[str, str], told: str) -> None:
    config = TrainConfig(ray_address="127.0.0.1:1")
    given = {"storage": os.devnull, "run": "run", "config": config}
    with (
        Driver.start(DriverRequest.model_validate(given | changes)) as driver,
        pytest.raises(ConfigError, match=told),
    ):
        driver.prepared()


@pytest.mark.slow
def test_a_job_without_anything_new_begins_no_run_and_leaves_nothing(ray_address: str) -> None:
    with TemporaryDirectory() as storage:
        config = CONFIG | {"workload": "tests.rank.tiny:Tiny", "ray_address": ray_address}
        given = {"storage": storage, "tracking_uri": "", "skip_unchanged": True, **config}
        with Driver.start(RetrainParameters(run="last", **given).request(), print) as driver:
            assert driver.prepared().unchanged_since == ""
            trained = train(driver)
            driver.ask(
                PUBLISH,
                PUBLISH.arguments(
                    train=trained,
                    evaluations=[],
                    best=trained.finalists[-1],
                    predictions=None,
                    seconds={},
                ),
            )
        with Driver.start(RetrainParameters(run="next", **given).request(), print) as driver:
            assert driver.prepared().unchanged_since == "last"
        left = [path for path in Path(storage, "next").rglob("*") if path.is_file()]
        assert left == []
