"""A driver that is asked to end while it waits: between two tries, and for a storage that hangs."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.asked import asking
from tests.rank.alone import run
from tests.rank.digests import digest_of_training
from tests.storage.doubles.fault_proxy import Fault, FaultProxy, Kind
from tests.waiting import wait_for
from train_core import TrainConfig, fit
from train_core.client.driver_handle import Driver
from train_core.config import available_cpus
from train_core.errors import StoppedError
from train_core.requests import DriverRequest
from train_core.stages import TRAIN
from train_core.storage.coordination.lease import newest_attempt
from train_core.storage.objects.retry_policy import SHORT
from train_core.storage.run_folder import RunFolder

# Ray starts workers while a test runs.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.leaves]


def test_an_end_that_is_asked_for_between_two_tries_is_the_end(tmp_path: Path) -> None:
    # No process group comes about, so that each attempt fails; the third pause is the longest.
    config = TrainConfig(
        num_workers=2,
        cpus_per_worker=available_cpus() / 2,
        runtime_env={"env_vars": {"GLOO_SOCKET_IFNAME": "nowhere"}},
    )
    log: list[str] = []
    request = DriverRequest(storage=str(tmp_path), run="run", config=config)
    with Driver.start(request, log.append) as driver:
        training = asking(driver, TRAIN, TRAIN.arguments())
        wait_for(lambda: sum("begins again" in line for line in log) == 3, 120)
        driver.close("KILLED")
        with pytest.raises(StoppedError):
            training.result(0)
    # There was no fourth.
    assert newest_attempt(RunFolder(str(tmp_path), "run").store) == 3
    assert not any("did not end within" in line for line in log)


AWAY = Fault(Kind.REFUSE, times=math.inf)
CONFIG = TrainConfig(
    workload="tests.rank.tiny:Unhurried",
    batch_size=32,
    eval_batch_size=16,
    epochs=2,
    checkpoint_every_steps=1,
    num_shards=2,
    num_workers=2,
    cpus_per_worker=0.5,
    grace_s=12,
)


@contextmanager
def begun_on_s3(storage: str, log: list[str]) -> Iterator[tuple[Driver, FaultProxy]]:
    """A driver whose training has its first checkpoint, and what all its requests pass."""
    folder = RunFolder(storage, "run")
    # This process looks past the proxy.
    assert not folder.checkpoints()
    with FaultProxy(os.environ["AWS_ENDPOINT_URL"]) as proxy, pytest.MonkeyPatch.context() as patch:
        patch.setenv("AWS_ENDPOINT_URL", proxy.url)
        request = DriverRequest(storage=storage, run="run", config=CONFIG)
        with Driver.start(request, log.append) as driver:
            asking(driver, TRAIN, TRAIN.arguments())
            wait_for(folder.checkpoints, 120)
            yield driver, proxy


def check_that_it_goes_on(storage: str, log: list[str], tmp_path: Path) -> None:
    """Train to the end from the newest checkpoint: nothing of the interruption is left."""
    folder = RunFolder(storage, "run")
    kept = folder.checkpoints()[-1].manifest.step
    result = fit(CONFIG, storage=storage, run="run", on_log=log.append)
    assert any(f"resuming after step {kept}" in line for line in log)
    undisturbed = RunFolder(str(tmp_path), "run")
    run(undisturbed, **CONFIG.model_dump(include={"batch_size", "epochs", "num_shards"}))
    assert result.step == 10
    assert digest_of_training(folder) == digest_of_training(undisturbed)


@pytest.mark.s3
@pytest.mark.parametrize("fault", [Fault(Kind.STALL_REQUEST, times=math.inf), AWAY])
def test_a_training_whose_storage_is_away_stops_in_order_within_its_grace(
    fault: Fault, object_store: str, tmp_path: Path
) -> None:
    storage, log = f"{object_store}/ending-{fault.kind.name}", []
    with begun_on_s3(storage, log) as (driver, proxy):
        proxy.schedule.add(fault)
        began = time.monotonic()
        driver.close("KILLED")
        # Freeing the run and what is looked up at the end each wait for the storage.
        assert time.monotonic() - began < CONFIG.grace_s + 4 * SHORT.budget_s
    assert any("asked to stop: its program ends" in line for line in log)
    assert any("the storage did not take a last checkpoint" in line for line in log)
    assert not any("did not end within grace_s" in line for line in log)
    check_that_it_goes_on(storage, log, tmp_path)


@pytest.mark.s3
def test_a_storage_that_comes_back_within_the_grace_gets_the_last_checkpoint(
    object_store: str, tmp_path: Path
) -> None:
    storage, log = f"{object_store}/back", []
    with begun_on_s3(storage, log) as (driver, proxy), ThreadPoolExecutor(1) as thread:
        proxy.schedule.add(AWAY)
        closing = thread.submit(driver.close, "KILLED")
        wait_for(lambda: any("asked to stop: " in line for line in log), 120)
        proxy.schedule.clear()
        closing.result(60)
    last = RunFolder(storage, "run").checkpoints()[-1].manifest
    assert last.stopped_by == "request"
    assert not any("did not end within grace_s" in line for line in log)
    check_that_it_goes_on(storage, log, tmp_path)
