"""A driver that is asked to end while it waits: between two tries, and for a storage that hangs."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.engine.alone import run
from tests.engine.digests import digest_of_training
from tests.storage.fault_proxy import Fault, FaultProxy, Kind
from train_core import TrainConfig, fit
from train_core.client.driver import Driver
from train_core.config import available_cpus
from train_core.errors import StoppedError
from train_core.requests import DriverRequest
from train_core.storage.coordination.lease import newest_attempt
from train_core.storage.objects.retries import SHORT
from train_core.storage.run_folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """Ray starts workers while a test runs."""


def wait_for(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 120
    while not what():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_an_end_that_is_asked_for_between_two_tries_is_the_end(tmp_path: Path) -> None:
    # No process group comes about, so that each attempt fails; the third pause is the longest.
    config = TrainConfig(
        num_workers=2,
        cpus_per_worker=available_cpus() / 2,
        runtime_env={"env_vars": {"GLOO_SOCKET_IFNAME": "nowhere"}},
    )
    log: list[str] = []
    request = DriverRequest(storage=str(tmp_path), run="run", config=config)
    with Driver(request, log.append) as driver:
        training = driver._call("train")
        wait_for(lambda: sum("begins again" in line for line in log) == 3)
        driver.close("KILLED")
        with pytest.raises(StoppedError):
            training.result(0)
    # There was no fourth.
    assert newest_attempt(RunFolder(str(tmp_path), "run").store) == 3
    assert not any("did not save within" in line for line in log)


@pytest.mark.s3
def test_a_storage_that_hangs_keeps_nobody_who_wants_to_end(
    object_store: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig(
        workload="tests.engine.tiny:Unhurried",
        batch_size=32,
        eval_batch_size=16,
        epochs=2,
        checkpoint_every_steps=1,
        num_shards=2,
        num_workers=2,
        cpus_per_worker=0.5,
        grace_s=5,
    )
    storage, log = f"{object_store}/ending", []
    folder = RunFolder(storage, "run")
    # This process looks past the proxy.
    assert not folder.checkpoints()
    with FaultProxy(os.environ["AWS_ENDPOINT_URL"]) as proxy, monkeypatch.context() as patched:
        patched.setenv("AWS_ENDPOINT_URL", proxy.url)
        request = DriverRequest(storage=storage, run="run", config=config)
        with Driver(request, log.append) as driver:
            driver._call("train")
            wait_for(folder.checkpoints)
            proxy.schedule.add(Fault(Kind.STALL_REQUEST, times=math.inf))
            began = time.monotonic()
            driver.close("KILLED")
            # Asking for the last checkpoint and freeing the run each wait for the storage.
            assert time.monotonic() - began < config.grace_s + 4 * SHORT.budget_s
    assert any("the training cannot be asked to save" in line for line in log)
    kept = folder.checkpoints()[-1].manifest.step
    result = fit(config, storage=storage, run="run", on_log=log.append)
    assert any(f"resuming after step {kept}" in line for line in log)
    undisturbed = RunFolder(str(tmp_path), "run")
    run(undisturbed, **config.model_dump(include={"batch_size", "epochs", "num_shards"}))
    assert result.step == 10
    assert digest_of_training(folder) == digest_of_training(undisturbed)
