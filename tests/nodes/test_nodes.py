"""Nodes of a real cluster that vanish, are cut off, are drained and come: the same bits.

The nodes are machines of a network of their own, the run folder is on a real S3 server, and the
program that asks is on none of the nodes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import psutil
import pytest

from tests import waiting
from tests.nodes.ray_nodes import MARKS, Node, Place, RayCluster, replaced_on_failure
from tests.rank.alone import run
from tests.rank.digests import digest_of_training, journal_of
from train_core import TrainConfig
from train_core.client.driver_handle import Driver
from train_core.errors import JobEndedError
from train_core.requests import DriverRequest
from train_core.results import TrainResult
from train_core.stages import TRAIN
from train_core.storage.coordination import lease
from train_core.storage.run_folder import RunFolder

pytestmark = MARKS

CONFIG: dict[str, Any] = {
    "workload": "tests.rank.tiny:Unhurried",
    "batch_size": 32,
    "eval_batch_size": 16,
    "num_shards": 2,
    "epochs": 20,
    "gpus_per_worker": 0,
    "checkpoint_every_steps": 5,
    "checkpoint_backpressure": "wait",
    "keep_last": 99,
    "hang_timeout_s": 15,
}
NUM_STEPS = 100
FUNCTION: dict[str, Any] = {
    "train_fn": "tests.compat.functions.plain:save_and_resume",
    "train_loop_config": {"num_epochs": 30, "pause_s": 1},
    "gpus_per_worker": 0,
    "keep_last": 99,
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = RunFolder(str(tmp_path_factory.mktemp("undisturbed")), "run")
    run(folder, **CONFIG)
    return digest_of_training(folder)


class Training:
    """A training on the cluster, in a thread."""

    def __init__(
        self, folder: RunFolder, log: list[str], scratch: Path, ending: Future[TrainResult]
    ) -> None:
        self.folder, self.log = folder, log
        self._scratch, self._ending = scratch, ending

    def wait_for_step(self, step: int) -> None:
        wait_for(lambda: (self.folder.live() or {}).get("step", 0) >= step, self.log)

    def wait_for_line(self, text: str, times: int = 1) -> None:
        wait_for(lambda: sum(text in line for line in self.log) >= times, self.log)

    def result(self) -> TrainResult:
        """Its end, to which it need not take its time any more."""
        (self._scratch / "go-on").touch()
        try:
            return self._ending.result(180)
        except Exception as error:
            raise AssertionError("\n".join(self.log[-40:])) from error

    def ends_as(self, undisturbed: str) -> None:
        """See that it comes to the same end."""
        assert self.result().step == NUM_STEPS
        assert digest_of_training(self.folder) == undisturbed

    def ends_as_the_function_does(self) -> None:
        """See that it comes to its end in the second attempt, and reports no epoch twice."""
        epochs = FUNCTION["train_loop_config"]["num_epochs"]
        assert self.result().step == epochs + 1
        assert [metrics["epoch"] for _, metrics in journal_of(self.folder)] == [*range(epochs)]
        assert lease.newest_attempt(self.folder.store) == 2


def train(driver: Driver, log: list[str]) -> TrainResult:
    try:
        return driver.ask(TRAIN, TRAIN.arguments())
    except JobEndedError as error:
        # As the flow does.
        log.append(str(error))
        with Driver.start(driver.request, log.append) as another:
            return another.ask(TRAIN, TRAIN.arguments())


def wait_for(what: Callable[[], object], log: list[str]) -> None:
    waiting.wait_for(what, 120, lambda: "\n".join(log[-40:]))


def nodes_with_workers(cluster: RayCluster, title: str = "ray::TrainWorker") -> list[Node]:
    """The nodes on which ranks run."""
    found = [node for node in cluster.nodes if workers_on(node, title)]
    assert found, "no rank runs"
    return found


def workers_on(node: Node, title: str = "ray::TrainWorker") -> list[psutil.Process]:
    """The processes of ranks and spares on a node, oldest first."""
    found = [one for one in node.processes() if title in " ".join(one.cmdline())]
    return sorted(found, key=lambda one: one.create_time())


def node_with_workers(cluster: RayCluster) -> Node:
    """A node on which a rank runs."""
    return nodes_with_workers(cluster)[0]


@contextmanager
def training(
    cluster: RayCluster,
    place: Place,
    num_workers: Any,
    *,
    num_nodes: int,
    config: dict[str, Any] = CONFIG,
) -> Iterator[Training]:
    """A training on a cluster of so many nodes."""
    config = config | {"num_workers": num_workers, "ray_address": cluster.dashboard}
    log: list[str] = []
    with TemporaryDirectory() as scratch, replaced_on_failure(cluster):
        if "workload" in config:
            config["settings"] = {"scratch": scratch}
        request = DriverRequest(storage=place.storage, run="run", config=TrainConfig(**config))
        cluster.have(num_nodes)
        # This process has other connections to that server, by another address.
        with patch.dict(os.environ, place.environment):
            driver = Driver.start(request, log.append)
        # A driver that is closed ends what the thread waits for.
        with ThreadPoolExecutor(1) as thread, driver:
            driver.prepared()
            ending = thread.submit(train, driver, log)
            yield Training(RunFolder(place.storage, "run"), log, Path(scratch), ending)


def test_a_node_that_loses_its_power(cluster: RayCluster, place: Place, undisturbed: str) -> None:
    with training(cluster, place, 2, num_nodes=3) as begun:
        begun.wait_for_step(5)
        node_with_workers(cluster).kill()
        begun.ends_as(undisturbed)
        # Ray may place a new worker on the node before it misses that.
        assert lease.newest_attempt(begun.folder.store) in (2, 3)


@pytest.mark.promise("in-place-on-a-cluster")
@pytest.mark.parametrize("spares", [0, 1])
def test_a_worker_that_dies_on_a_node_costs_no_step(
    cluster: RayCluster, place: Place, undisturbed: str, spares: int
) -> None:
    config = CONFIG | {"spares": spares, "checkpoint_every_steps": 50}
    with training(cluster, place, 2, num_nodes=2, config=config) as begun:
        begun.wait_for_step(5)
        if spares:
            # On each node.
            used = nodes_with_workers(cluster)
            wait_for(lambda: all(len(workers_on(node)) == 2 for node in used), begun.log)
        # A step is done while it dies.
        workers_on(node_with_workers(cluster))[0].kill()
        died_at = (begun.folder.live() or {})["step"]
        begun.ends_as(undisturbed)
        resumed = [line for line in begun.log if "resuming after step" in line]
        # No checkpoint was stored before, so only a survivor has it.
        assert [int(line.partition("after step ")[2].split()[0]) for line in resumed] >= [died_at]
        assert all("from the memory of its workers" in line for line in resumed), resumed


def test_a_node_that_loses_its_power_where_fewer_will_do(
    cluster: RayCluster, place: Place, undisturbed: str
) -> None:
    with training(cluster, place, (1, 2), num_nodes=2) as begun:
        begun.wait_for_line("training on 2 workers")
        begun.wait_for_step(5)
        node_with_workers(cluster).kill()
        begun.wait_for_line("training on 1 workers")
        begun.ends_as(undisturbed)


@pytest.mark.promise("drained-nodes")
def test_a_node_that_is_drained_is_left_and_one_that_comes_is_used(
    cluster: RayCluster, place: Place, undisturbed: str
) -> None:
    with training(cluster, place, (1, 2), num_nodes=2) as begun:
        begun.wait_for_line("training on 2 workers")
        begun.wait_for_step(4)
        drained_at = (begun.folder.live() or {})["step"]
        node = node_with_workers(cluster)
        cluster.drain(node)
        begun.wait_for_line("is being drained")
        begun.wait_for_line("training on 1 workers")
        # A checkpoint of just then: nothing that was done is done again.
        manifests = [one.manifest for one in begun.folder.checkpoints()]
        assert max(one.step for one in manifests if one.stopped_by == "request") >= drained_at
        node.kill()
        cluster.add()
        begun.wait_for_line("room for more than 1 workers")
        begun.wait_for_line("training on 2 workers", times=2)
        begun.ends_as(undisturbed)


def test_a_function_leaves_a_node_that_is_drained_after_a_report(
    cluster: RayCluster, place: Place
) -> None:
    with training(cluster, place, 2, num_nodes=3, config=FUNCTION) as begun:
        begun.wait_for_step(2)
        drained = nodes_with_workers(cluster, "RayTrainWorker")[0]
        cluster.drain(drained)
        begun.wait_for_line("is being drained")
        wait_for(lambda: lease.newest_attempt(begun.folder.store) == 2, begun.log)
        last = begun.folder.newest()
        assert last is not None
        assert last.manifest.stopped_by == "request"
        begun.wait_for_step(last.step + 1)
        assert drained not in nodes_with_workers(cluster, "RayTrainWorker")
        assert not any("begins again" in line for line in begun.log)
        begun.ends_as_the_function_does()
        drained.kill()


@pytest.mark.promise("evicted-pods")
def test_a_pod_with_a_worker_that_is_evicted_is_left_after_a_checkpoint(
    cluster: RayCluster, place: Place, undisturbed: str
) -> None:
    with training(cluster, place, 2, num_nodes=3) as begun:
        begun.wait_for_step(5)
        node_with_workers(cluster).evict()
        begun.ends_as(undisturbed)
        assert not any("begins again" in line for line in begun.log)
        # It moved once, and did nothing twice.
        assert lease.newest_attempt(begun.folder.store) == 2


@pytest.mark.promise("evicted-pods")
def test_a_pod_with_a_worker_of_a_function_that_is_evicted_is_left_after_a_report(
    cluster: RayCluster, place: Place
) -> None:
    with training(cluster, place, 2, num_nodes=3, config=FUNCTION) as begun:
        begun.wait_for_step(2)
        nodes_with_workers(cluster, "RayTrainWorker")[0].evict()
        begun.ends_as_the_function_does()
        assert not any("begins again" in line for line in begun.log)


@pytest.mark.promise("evicted-pods")
@pytest.mark.parametrize("end", [Node.kill, Node.evict], ids=["power", "evicted"])
def test_a_head_that_is_lost_and_started_again(
    cluster: RayCluster, place: Place, undisturbed: str, end: Callable[[Node], None]
) -> None:
    with training(cluster, place, 2, num_nodes=2) as begun:
        begun.wait_for_step(5)
        end(cluster.head)
        # What the head knew of its nodes is lost with it, and they find no way back.
        cluster.kill()
        begun.wait_for_line("ended, and nothing more is known")
        cluster.start_again()
        cluster.have(2)
        begun.ends_as(undisturbed)
        assert lease.newest_attempt(begun.folder.store) == 2


def test_a_node_that_is_cut_off_and_comes_back(
    cluster: RayCluster, place: Place, undisturbed: str
) -> None:
    with training(cluster, place, 2, num_nodes=3) as begun:
        begun.wait_for_step(5)
        node = node_with_workers(cluster)
        node.machine.cut_off()
        begun.wait_for_line("begins again")
        # Whatever of the first attempt still lives there has no say any more.
        node.machine.connect()
        begun.ends_as(undisturbed)
        # The head has given it up; it would end by itself at some time.
        node.kill()
