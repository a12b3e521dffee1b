"""A deployment with one slot never wedges: whatever dies in whichever state, the next run begins.

Its flow only stands still; what frees a slot is Prefect's server, which knows of no training.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from enum import Enum
from pathlib import Path

import psutil
import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Crashed, Pending, Running

from benchmarks.services import free_port
from evertrain_flows.cli.local_servers import KEPT_LEASES, LocalServers
from evertrain_flows.flow_runs.deployment_slots import DeploymentSlots, free_slots, read_slots
from evertrain_flows.timing import TIMING
from tests.flows.conftest import isolated
from tests.flows.deployment.deployed import Server, Site, flow_runs, kill_all, state, wait_for
from tests.flows.deployment.holding import NOTES, PENDING, RUNNING, deploy
from tests.rank.alone import create
from train_core import TrainConfig
from train_core.storage.coordination.holder import Life
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import begin_attempt

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

DEPLOYMENT = "retrain/hold"
LEASE_S = 30
"""The least that Prefect takes for a flow run that is Pending; as delivered, it is 300."""
HASTY = {
    "PREFECT_SERVER_CONCURRENCY_INITIAL_DEPLOYMENT_LEASE_DURATION": str(LEASE_S),
    # Not more often: on a machine that is busy, SQLite is locked.
    "PREFECT_SERVER_SERVICES_REPOSSESSOR_LOOP_SECONDS": "5",
    "PREFECT_SERVER_DEPLOYMENTS_CONCURRENCY_SLOT_WAIT_SECONDS": "5",
}
IN_MEMORY = dict.fromkeys(KEPT_LEASES, "prefect.server.concurrency.lease_storage.memory")
RENEWED_FOR_S = 300
"""The lease of a flow run that is Running, which Prefect's engine renews."""


class Struck(Enum):
    """Who is killed."""

    SERVER = "server"
    WORKER = "worker"
    BOTH = "both"


@contextmanager
def client_of(api: str) -> Iterator[SyncPrefectClient]:
    with temporary_settings({PREFECT_API_URL: api}), get_client(sync_client=True) as client:
        yield client


class Held:
    """A server, a worker, and a flow run `first` that holds the only slot."""

    def __init__(self, home: Path, environment: dict[str, str]) -> None:
        self.home, self.notes = home, home / "notes"
        self.notes.mkdir()
        environment = isolated(home) | {NOTES: str(self.notes)} | environment
        self.server = Server(home, environment)
        self.server.start()
        self.site = Site(home, environment, self.server.url)
        with client_of(self.server.url) as client:
            self._deployment = deploy(client)
        self._workers = ExitStack()

    def start_worker(self) -> None:
        started = self._workers.enter_context(self.site.worker())
        self.worker = psutil.Process(started.pid)

    def flow_processes(self) -> list[psutil.Process]:
        return [one for one in self.worker.children(recursive=True) if "python" in one.name()]

    def run(self, name: str) -> None:
        parameters = {"parameters": {"storage": str(self.home / "runs")}}
        with client_of(self.server.url) as client:
            client.create_flow_run_from_deployment(
                self._deployment, name=name, parameters=parameters
            )

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


@contextmanager
def started(home: Path, environment: dict[str, str]) -> Iterator[Held]:
    made = Held(home, environment)
    try:
        yield made
    finally:
        made.close()


@pytest.fixture
def held(tmp_path: Path) -> Iterator[Held]:
    with started(tmp_path, HASTY) as made:
        made.start_worker()
        yield made


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


@pytest.mark.promise("slots-return")
@pytest.mark.parametrize("where", [PENDING, RUNNING, "cancelling"])
@pytest.mark.parametrize("struck", Struck)
def test_the_next_run_begins(held: Held, struck: Struck, where: str) -> None:
    bring_into(held, where)
    strike(held, struck, where)
    held.run("second")
    held.wait_for_state("second", "COMPLETED", within_s=RENEWED_FOR_S + LEASE_S)


@pytest.fixture
def forgetful(tmp_path: Path) -> Iterator[Held]:
    """At a server that others run, as Prefect is delivered: the leases are in its memory."""
    with started(tmp_path, HASTY | IN_MEMORY) as made:
        made.start_worker()
        yield made


def only_one(found: list[DeploymentSlots]) -> DeploymentSlots:
    (slots,) = found
    assert (slots.deployment, slots.limit) == (DEPLOYMENT, 1)
    return slots


HASTY_LOOK = replace(TIMING, slot_silence_s=1, slots_settle_s=1)


@pytest.mark.promise("slots-freed")
def test_a_slot_that_a_dead_run_holds_at_a_forgetful_server_is_freed_by_a_command(
    forgetful: Held,
) -> None:
    bring_into(forgetful, PENDING)
    strike(forgetful, Struck.BOTH, PENDING)
    forgetful.run("second")
    with client_of(forgetful.server.url) as client:
        # Who was heard of ten minutes ago may live.
        assert free_slots(client) == []
        (holder,) = only_one(read_slots(client)).holders
        assert (holder.flow_run.name, holder.life) == ("first", Life.ALIVE)
        shown = json.loads(forgetful.site.evertrain("slots", "--json"))
        assert [(one["deployment"], one["held by"]) for one in shown] == [(DEPLOYMENT, "first")]
        assert "nothing was freed" in forgetful.site.evertrain("slots", "--free")
        assert state(forgetful.server.url, "second") == "SCHEDULED"
        ((slots, dead),) = free_slots(client, HASTY_LOOK)
    assert (slots.num_unheld, [one.flow_run.name for one in dead]) == (1, ["first"])
    assert state(forgetful.server.url, "first") == "CRASHED"
    forgetful.wait_for_state("second", "COMPLETED")


@pytest.mark.promise("slots-freed")
def test_a_run_that_lives_or_may_live_keeps_its_slot_at_a_forgetful_server(forgetful: Held) -> None:
    bring_into(forgetful, RUNNING)
    forgetful.server.kill()
    forgetful.server.start()
    with client_of(forgetful.server.url) as client:
        # Its run is not where this machine looks for it.
        assert free_slots(client, HASTY_LOOK) == []
        assert only_one(read_slots(client, HASTY_LOOK)).holders[0].life is Life.UNKNOWN
        folder = RunFolder(str(forgetful.home / "runs"), "first")
        create(folder, TrainConfig())
        driver = begin_attempt(folder)
        assert free_slots(client, HASTY_LOOK) == []
        assert only_one(read_slots(client, HASTY_LOOK)).holders[0].life is Life.ALIVE
        driver.release()
        kill_all(forgetful.worker)
        ((_, dead),) = free_slots(client, HASTY_LOOK)
    assert [one.flow_run.name for one in dead] == ["first"]
    forgetful.let_go(RUNNING)
    forgetful.start_worker()
    forgetful.run("second")
    forgetful.wait_for_state("second", "COMPLETED")


@pytest.mark.promise("slots-freed")
def test_a_slot_that_no_run_holds_is_freed_and_that_of_a_run_with_a_lease_is_kept(
    tmp_path: Path,
) -> None:
    with (
        started(tmp_path, HASTY | IN_MEMORY) as server_only,
        client_of(server_only.server.url) as client,
    ):
        name = only_one(read_slots(client)).limit_name
        client.increment_concurrency_slots([name], 1, "concurrency")
        assert only_one(read_slots(client)).active == 1
        assert "held by no flow run" in server_only.site.evertrain("slots", "--free")
        assert only_one(read_slots(client)).active == 0
        deployment = client.read_deployment_by_name(DEPLOYMENT)
        flow_run = client.create_flow_run_from_deployment(deployment.id, name="first")
        client.set_flow_run_state(flow_run.id, Pending())
        assert only_one(read_slots(client)).active == 1
        assert free_slots(client, replace(TIMING, slot_silence_s=0, slots_settle_s=0)) == []
        (holder,) = only_one(read_slots(client)).holders
        assert (holder.flow_run.name, holder.life) == ("first", Life.ALIVE)
        client.set_flow_run_state(flow_run.id, Running())
        server_only.server.kill()
        server_only.server.start()
        # It has no run folder, and its lease is forgotten: only a person can tell that it is dead.
        assert free_slots(client, HASTY_LOOK) == []
        why = only_one(read_slots(client, HASTY_LOOK)).holders[0].why
        assert "if its process is dead, change its state in Prefect to Crashed" in why
        client.set_flow_run_state(flow_run.id, Crashed(), force=True)
        assert only_one(read_slots(client)).active == 0


def test_the_server_of_evertrain_ui_keeps_who_holds_a_slot_beside_its_database(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path))
    port = free_port()
    with LocalServers() as servers:
        servers.start_prefect(port)
        servers.wait_until_up()
        with client_of(f"http://127.0.0.1:{port}/api") as client:
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name="x", limit=1))
            client.increment_concurrency_slots_with_lease(["x"], 1, "concurrency", 60)
    assert (tmp_path / "prefect.db").exists()
    assert list((tmp_path / "concurrency_leases").glob("*.json"))
