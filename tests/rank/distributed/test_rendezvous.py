"""The store in which ranks find each other: in the driver, and for nobody else's eyes."""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from unittest.mock import patch

import psutil
import pytest

from tests.asked import evaluate, train
from tests.nodes.network import PREFIX
from tests.ranks.ray_processes import part_of_ray
from tests.waiting import wait_for
from train_core import TrainConfig
from train_core.client.driver_handle import Driver
from train_core.errors import StageError
from train_core.rank.distributed.rendezvous import LOOPBACK, choose_interfaces
from train_core.requests import DriverRequest
from train_core.results import CheckpointSummary
from train_core.storage.run_folder import RunFolder
from train_core.text.log_lines import warning_in

pytestmark = pytest.mark.timeout(180)
FROZEN_S, HANG_TIMEOUT_S = 45, 30
"""The driver stands still for longer than a silent worker is waited for."""


def begin(
    tmp_path: Path, workload: str, log: list[str], **config: object
) -> tuple[Driver, RunFolder]:
    asked = TrainConfig(
        workload=f"tests.rank.tiny:{workload}",
        settings={"scratch": str(tmp_path)},
        batch_size=32,
        num_workers=2,
        cpus_per_worker=0.5,
        **config,  # type: ignore[arg-type]  # checked by pydantic
    )
    request = DriverRequest(storage=str(tmp_path), run="run", config=asked)
    return Driver.start(request, log.append), RunFolder(str(tmp_path), "run")


def step_of(folder: RunFolder) -> int:
    return int((folder.live() or {}).get("step", 0))


def training_processes(driver: Driver) -> list[psutil.Process]:
    """The driver and its workers."""
    own = psutil.Process(driver.carrier.process.pid)
    return [own, *(one for one in own.children(recursive=True) if "TrainWorker" in title(one))]


def title(process: psutil.Process) -> str:
    with suppress(psutil.NoSuchProcess):
        return " ".join(process.cmdline()[:1])
    return ""


def listening(processes: list[psutil.Process]) -> set[tuple[str, int]]:
    """The addresses at which they listen; none of a process that has ended meanwhile."""
    found = set()
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            found |= {
                (connection.laddr.ip, connection.laddr.port)
                for connection in process.net_connections(kind="inet")
                if connection.status in (psutil.CONN_LISTEN, psutil.CONN_NONE)
            }
    return found


def all_processes(driver: Driver) -> list[psutil.Process]:
    """The driver, its workers, and all that Ray has started."""
    own = psutil.Process(driver.carrier.process.pid)
    return [own, *own.children(recursive=True)]


class Trained(NamedTuple):
    """A driver that has trained, on a Ray of its own."""

    driver: Driver
    opened: set[tuple[str, int]]
    """What the driver and its workers listened at, besides Ray, while they trained."""
    all_opened: set[tuple[str, int]]
    """What all processes listened at, those of Ray included."""
    names: set[str]
    """The names of these processes."""
    finalists: list[CheckpointSummary]
    log: list[str]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    home = tmp_path_factory.mktemp("trained")
    log: list[str] = []
    driver, folder = begin(home, "Waiting", log)
    # A driver that is closed ends what the thread waits for.
    with ThreadPoolExecutor(1) as thread, driver:
        driver.prepared()
        # The workers have started, and know no training yet: so far it is Ray that listens.
        wait_for(lambda: len(training_processes(driver)) == 3, 90)
        of_ray = listening(training_processes(driver))
        training = thread.submit(train, driver)
        wait_for(lambda: step_of(folder) >= 1, 90)
        opened = listening(training_processes(driver)) - of_ray
        everything = all_processes(driver)
        all_opened, names = listening(everything), {one.name() for one in everything}
        (home / "go-on").touch()
        yield Trained(driver, opened, all_opened, names, training.result().finalists, log)


@pytest.mark.slow
@pytest.mark.promise("loopback")
def test_what_is_opened_for_a_training_on_this_machine_is_on_the_loopback_only(
    trained: Trained,
) -> None:
    assert len(trained.opened) >= 3, "the store, and a socket of gloo in each rank"
    assert {host for host, _ in trained.opened} == {LOOPBACK}


@pytest.mark.slow
@pytest.mark.promise("loopback")
def test_no_process_of_a_local_ray_listens_beyond_the_loopback(trained: Trained) -> None:
    assert {"gcs_server", "raylet"} <= trained.names
    assert len(trained.all_opened) > len(trained.opened) + 3, "Ray's own are among them"
    # The second one is the same, as a socket for both kinds of addresses has it.
    assert {host for host, _ in trained.all_opened} <= {LOOPBACK, f"::ffff:{LOOPBACK}"}


@pytest.mark.slow
@pytest.mark.promise("ray-dies")
def test_a_driver_whose_ray_dies_ends_so_that_the_next_try_has_a_new_one(trained: Trained) -> None:
    """The last one that uses the driver. That another part of Ray dies is in test_ray_dies.py."""
    process = psutil.Process(trained.driver.carrier.process.pid)
    part_of_ray(trained.driver, "raylet/raylet").kill()
    process.wait(10)
    with pytest.raises(StageError, match="ended unexpectedly"):
        evaluate(trained.driver, trained.finalists, "validation")
    # A thread reads the log; it may be behind the replies.
    wait_for(lambda: any("Ray's raylet died" in (warning_in(one) or "") for one in trained.log), 90)


def test_gloo_takes_the_interface_that_leads_to_the_driver() -> None:
    for interface, addresses in psutil.net_if_addrs().items():
        for host in [one.address for one in addresses if one.family == socket.AF_INET]:
            # Those of the tests of several nodes come and go.
            if not interface.startswith(PREFIX):
                of_nccl = interface if host == LOOPBACK else None
                assert chosen_for(host) == (interface, of_nccl)


def chosen_for(host: str) -> tuple[str | None, str | None]:
    """The interfaces of gloo and nccl, where none was set before."""
    names = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
    with patch.dict(os.environ):
        for name in names:
            os.environ.pop(name, None)
        choose_interfaces(host)
        gloo, nccl = map(os.environ.get, names)
        return gloo, nccl


def test_an_interface_that_is_set_stays() -> None:
    with patch.dict(os.environ, {"GLOO_SOCKET_IFNAME": "another"}):
        choose_interfaces(LOOPBACK)
        assert os.environ["GLOO_SOCKET_IFNAME"] == "another"


@pytest.mark.slow
def test_a_driver_that_stands_still_costs_no_step(tmp_path: Path) -> None:
    driver, folder = begin(
        tmp_path,
        "Unhurried",
        [],
        max_steps=FROZEN_S + 25,
        epochs=99,
        checkpoint_every_steps=5,
        hang_timeout_s=HANG_TIMEOUT_S,
    )
    with driver:
        training = threading.Thread(target=train, args=(driver,))
        training.start()
        wait_for(lambda: step_of(folder) >= 2, 90)
        os.kill(driver.carrier.process.pid, signal.SIGSTOP)
        before, begun = step_of(folder), time.monotonic()
        # This is the promise, and no wait for something.
        time.sleep(FROZEN_S)
        done, took_s = step_of(folder) - before, time.monotonic() - begun
        os.kill(driver.carrier.process.pid, signal.SIGCONT)
        training.join()
    # A step of this workload takes a second, and is shown in the next one.
    assert done >= took_s - 4
    assert max(one.manifest.step for one in folder.checkpoints()) == FROZEN_S + 25
    assert {one.name.attempt for one in folder.checkpoints()} == {1}
