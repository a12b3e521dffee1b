"""Whole pipelines on a cluster whose nodes vanish: all that comes of them is the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from benchmarks.services import mlflow_server, prefect_server
from tests.chaos.held import HOLD, NOTES
from tests.chaos.pipeline import House, outcome, remaining, started, undisturbed, unfinished
from tests.cluster.network import Network
from tests.cluster.ray_nodes import MARKS, Node, Place, RayCluster, cluster_of
from tests.flows.conftest import isolated
from tests.storage.fault_proxy import FaultProxy

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


@pytest.mark.parametrize("stage", ["mid-epoch", "before the manifest", "inference"])
def test_a_node_that_loses_its_power(
    net: Network, place: Place, tmp_path: Path, reference: dict[str, Any], stage: str
) -> None:
    notes = tmp_path / "notes"
    notes.mkdir()
    with (
        prefect_server(tmp_path) as api,
        mlflow_server(tmp_path) as tracking,
        FaultProxy(tracking, host=net.address) as mlflow,
        cluster_of(net, place, 1, 1, 1) as cluster,
    ):
        # Who asks finds the servers as the machines do.
        environment = isolated(tmp_path) | place.environment
        environment |= {"PREFECT_API_URL": api, "MLFLOW_TRACKING_URI": mlflow.url}
        house = House(tmp_path, environment, place.storage, cluster.dashboard)
        told = {HOLD: f"{stage}@0", NOTES: str(notes)}
        with started(house.command("run", told), tmp_path, environment) as pipeline:
            pipeline.wait_for(stage, notes)
            node_of(cluster, int((notes / "pid-0").read_text())).kill()
            (notes / "go-on").touch()
            assert pipeline.end() == 0, pipeline.log
        assert remaining(pipeline.belongings) == []
        assert unfinished(house.folder("run")) == []
        assert outcome(house, "run") == reference
