"""A deployment with one slot never wedges: whatever dies in whichever state, the next run begins.

Its flow only stands still; what frees a slot is Prefect's server, which knows of no training.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator
from contextlib import ExitStack
from enum import Enum
from pathlib import Path

import psutil
import pytest

from evertrain_flows.cli.local_servers import KEPT_LEASES
from tests.flows.conftest import isolated
from tests.flows.deployment.deployed import (
    Server,
    Site,
    flow_runs,
    kill_all,
    state,
    wait_for,
)
from tests.flows.deployment.holding import NOTES, PENDING, RUNNING, deployment_file

pytestmark = pytest.mark.timeout(560)

LEASE_S = 30
"""The least that Prefect takes for a flow run that is Pending; as delivered, it is 300."""
HASTY = {
    "PREFECT_SERVER_CONCURRENCY_INITIAL_DEPLOYMENT_LEASE_DURATION": str(LEASE_S),
    "PREFECT_SERVER_SERVICES_REPOSSESSOR_LOOP_SECONDS": "1",
    "PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": "1",
}
RENEWED_FOR_S = 300
"""The lease of a flow run that is Running, which Prefect's engine renews."""


class Struck(Enum):
    """Who is killed."""

    SERVER = "server"
    WORKER = "worker"
    BOTH = "both"


class Held:
    """A server, a worker, and a flow run `first` that holds the only slot."""

    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        self.home, self.notes = home, home / "notes"
        self.notes.mkdir()
        environment = isolated(home) | {NOTES: str(self.notes)} | environment
        self.server = Server(home, environment)
        self.server.start()
        self.site = Site(home, environment, self.server.url)
        self.site.prefect("work-pool", "create", "evertrain", "--type", "process")
        self.site.deploy_again(deployment_file(home / "held"))
        self._workers = ExitStack()
        self.start_worker()

    def start_worker(self) -> None:
        started = self._workers.enter_context(self.site.worker())
        self.worker = psutil.Process(started.pid)

    def flow_processes(self) -> list[psutil.Process]:
        return [one for one in self.worker.children(recursive=True) if "python" in one.name()]

    def run(self, name: str) -> None:
        self.site.prefect("deployment", "run", "hold/hold", "--flow-run-name", name)

    def wait_for_state(self, name: str, *wanted: str, within_s: float = 150) -> None:
        api = self.server.url
        wait_for(lambda: state(api, name) in wanted, self.home, within_s)

    def hold(self, where: str) -> None:
        """Begin the flow run `first`, which stands still there."""
        (self.notes / f"hold-{where}").touch()
        self.run("first")
        said = self.notes / (where if where == PENDING else f"{where}-first")
        wait_for(said.exists, self.home)
        self.wait_for_state("first", where.upper())

    def let_go(self, where: str) -> None:
        (self.notes / f"hold-{where}").unlink()

    def close(self) -> None:
        self._workers.close()
        self.server.stop()


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    made = Held(tmp_path, KEPT_LEASES | HASTY)
    try:
        yield made
    finally:
        made.close()


def bring_into(held: Held, where: str) -> None:
    held.hold(PENDING if where == PENDING else RUNNING)
    if where == "cancelling":
        # The flow has no time to obey.
        for process in held.flow_processes():
            process.suspend()
        (flow_run,) = flow_runs(held.server.url, "first")
        held.site.prefect("flow-run", "cancel", flow_run["id"])
        held.wait_for_state("first", "CANCELLING")


def strike(held: Held, struck: Struck, where: str) -> None:
    """Kill, and start again what was killed."""
    flow_processes = held.flow_processes()
    if struck is not Struck.WORKER:
        held.server.kill()
    if struck is not Struck.SERVER:
        kill_all(held.worker)
    held.let_go(PENDING if where == PENDING else RUNNING)
    if struck is Struck.SERVER and where != RUNNING:
        # Nobody can be told of the end of what it was about to do.
        psutil.wait_procs(flow_processes, timeout=120)
    if struck is not Struck.WORKER:
        held.server.start()
    if struck is not Struck.SERVER:
        held.start_worker()


ROWS = list(itertools.product(Struck, (PENDING, RUNNING, "cancelling")))
QUICK = (Struck.BOTH, PENDING)


@pytest.mark.parametrize(
    ("struck", "where"),
    [pytest.param(*row, marks=[] if row == QUICK else pytest.mark.slow) for row in ROWS],
)
def test_the_next_run_begins(held: Held, struck: Struck, where: str) -> None:
    bring_into(held, where)
    strike(held, struck, where)
    began = time.monotonic()
    held.run("second")
    held.wait_for_state("second", "COMPLETED", within_s=RENEWED_FOR_S + LEASE_S)
    print(f"{struck.value} killed, {where}: the next run after {time.monotonic() - began:.0f} s")
