"""Whole pipelines on a cluster whose nodes vanish: all that comes of them is the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.services import mlflow_server, prefect_server
from tests.chaos.pipeline import (
    JOB_ENDS_WITHIN_S,
    House,
    Started,
    outcome,
    remaining,
    started,
    undisturbed,
    unfinished,
)
from tests.chaos.standing import HOLD, NOTES
from tests.flows.conftest import isolated
from tests.nodes.network import Network
from tests.nodes.ray_nodes import MARKS, Node, Place, RayCluster, replaced_on_failure
from tests.storage.doubles.fault_proxy import FaultProxy

pytestmark = MARKS


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What becomes of a pipeline on a Ray of its own and a disk."""
    home = tmp_path_factory.mktemp("undisturbed")
    return undisturbed(House(home, isolated(home), str(home / ".evertrain/runs")))


def node_of(cluster: RayCluster, pid: int) -> Node:
    """The node on which a process runs."""
    (found,) = [node for node in cluster.nodes if pid in {one.pid for one in node.processes()}]
    return found


@dataclass(frozen=True)
class Held:
    """A pipeline whose first rank, or who scores, stands still at a stage."""

    house: House
    cluster: RayCluster
    notes: Path
    pipeline: Started

    def wait_for_line(self, text: str) -> None:
        """Wait until the driver has said so."""
        log = self.house.home / ".evertrain/logs/run.log"
        self.pipeline.wait(lambda: text in log.read_text())

    def node(self) -> Node:
        """The node on which it is held."""
        return node_of(self.cluster, int((self.notes / "pid-0").read_text()))

    def go_on(self) -> None:
        (self.notes / "go-on").touch()

    def ends_as(self, reference: dict[str, Any]) -> None:
        """See that it comes to the same end."""
        assert self.pipeline.end() == 0, self.pipeline.log
        assert outcome(self.house, "run") == reference


@dataclass(frozen=True)
class Servers:
    """Prefect's and MLflow's, as the machines of the network find them."""

    api: str
    tracking: str


@pytest.fixture(scope="module")
def servers(net: Network, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    home = tmp_path_factory.mktemp("servers")
    with (
        prefect_server(home) as api,
        mlflow_server(home) as tracking,
        FaultProxy(tracking, host=net.address) as mlflow,
    ):
        yield Servers(api, mlflow.url)


@dataclass(frozen=True)
class Site:
    """Where a test's pipeline runs: a home of its own, and what it shares with the others."""

    cluster: RayCluster
    servers: Servers
    place: Place
    home: Path


@pytest.fixture
def site(cluster: RayCluster, servers: Servers, place: Place, tmp_path: Path) -> Site:
    return Site(cluster, servers, place, tmp_path)


@contextmanager
def held(site: Site, stage: str, *, num_nodes: int, num_workers: str = "2") -> Iterator[Held]:
    """A pipeline that is held at the stage; at the end, it has ended well and nothing is left."""
    home, cluster = site.home, site.cluster
    notes = home / "notes"
    notes.mkdir()
    cluster.have(num_nodes)
    # The command reaches the servers by the addresses that the machines use.
    environment = isolated(home) | site.place.environment
    environment |= {
        "PREFECT_API_URL": site.servers.api,
        "MLFLOW_TRACKING_URI": site.servers.tracking,
    }
    house = House(home, environment, site.place.storage, cluster.dashboard)
    command = house.command("run", {HOLD: f"{stage}@0", NOTES: str(notes)})
    command[command.index("--num-workers") + 1] = num_workers
    with replaced_on_failure(cluster):
        with started(command, home, environment) as pipeline:
            pipeline.wait_for(stage, notes)
            yield Held(house, cluster, notes, pipeline)
        assert remaining(pipeline.belongings) == []
        assert unfinished(house.folder("run"), job_ends_within_s=JOB_ENDS_WITHIN_S) == []


@pytest.mark.promise("lost-nodes")
@pytest.mark.parametrize("stage", ["mid-epoch", "before the manifest", "inference"])
def test_a_node_that_loses_its_power(site: Site, reference: dict[str, Any], stage: str) -> None:
    with held(site, stage, num_nodes=3) as run:
        run.node().kill()
        run.go_on()
        run.ends_as(reference)


@pytest.mark.promise("lost-nodes")
@pytest.mark.parametrize("stage", ["mid-epoch", "inference"])
def test_a_head_that_loses_its_power_and_is_started_again(
    site: Site, reference: dict[str, Any], stage: str
) -> None:
    with held(site, stage, num_nodes=2) as run:
        # What the head knew of its nodes is lost with it, and they find no way back.
        run.cluster.kill()
        run.go_on()
        run.cluster.start_again()
        run.cluster.have(2)
        run.ends_as(reference)


@pytest.mark.promise("lost-nodes")
@pytest.mark.parametrize("stage", ["mid-epoch", "inference"])
def test_a_node_that_is_cut_off_and_comes_back(
    site: Site, reference: dict[str, Any], stage: str
) -> None:
    with held(site, stage, num_nodes=3) as run:
        node = run.node()
        node.machine.cut_off()
        run.go_on()
        run.cluster.wait_until_missed(node)
        # Whatever of it still lives there has no say any more.
        node.machine.connect()
        run.ends_as(reference)
        # The head has given it up; it would end by itself at some time.
        node.kill()


@pytest.mark.promise("drained-nodes")
def test_a_node_that_is_drained_is_left(site: Site, reference: dict[str, Any]) -> None:
    with held(site, "mid-epoch", num_nodes=2, num_workers="1,2") as run:
        node = run.node()
        run.cluster.drain(node)
        run.wait_for_line("is being drained")
        run.go_on()
        run.wait_for_line("training on 1 workers")
        node.kill()
        run.ends_as(reference)
