"""A worker's runs whose Prefect server fails while they train."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.chaos.servers.outages import AWAY_S
from tests.chaos.servers.prefect_lost import END_WITHIN_S
from tests.chaos.servers.servers import OwnPrefect
from tests.chaos.servers.switch import Way
from tests.flows.conftest import isolated
from tests.flows.deployment.deployed import (
    Site,
    flow_of,
    flow_runs,
    found,
    hasty_automations,
    held,
    log_of,
    state,
    wait_for,
)
from tests.rank.digests import digest_of_training
from train_core.storage.coordination import lease
from train_core.storage.run_folder import RunFolder

HEARTBEAT_S, MISSED_S = 30, 75

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of these runs' own, whose server is not the other tests'."""
    return tmp_path_factory.mktemp("server-lost")


@pytest.fixture(scope="module")
def server(home: Path) -> Iterator[OwnPrefect]:
    with OwnPrefect(home) as found:
        yield found


@pytest.fixture(scope="module")
def api(server: OwnPrefect) -> str:
    return server.environment["PREFECT_API_URL"]


@pytest.fixture(scope="module")
def site(server: OwnPrefect, home: Path, api: str) -> Iterator[Site]:
    """The deployments there, and a worker that waits for runs."""
    site = Site(home, isolated(home), api)
    site.deploy()
    with site.worker():
        yield site


def is_like(folder: RunFolder, undisturbed: str) -> bool:
    attempts = {one.name.attempt for one in folder.checkpoints()}
    return attempts == {1} and digest_of_training(folder) == undisturbed


@pytest.mark.parametrize("way", [way for way in Way if way is not Way.ANSWERS_401])
def test_one_that_is_back_in_time_shows_the_run_as_undisturbed(
    way: Way, site: Site, server: OwnPrefect, api: str, home: Path, undisturbed: str
) -> None:
    run = f"back-{way.name.lower().replace('_', '-')}"
    with held(site.prefect, home, run) as (folder, go_on):
        server.fail(way, flow_of(folder).pid)
        # This is the promise: half a minute, while the flow lives.
        time.sleep(AWAY_S)
        server.mend()
        go_on.touch()
        wait_for(lambda: state(api, run) == "COMPLETED", home)
    assert {"table", "markdown"} <= {one["type"] for one in found(api, "artifacts", run)}
    assert is_like(folder, undisturbed)


@pytest.mark.promise("cancel")
def test_a_run_is_cancelled_whose_prefect_worker_does_not_do_it(
    site: Site, api: str, home: Path
) -> None:
    """A worker that missed its server for too long cancels none of its runs any more."""
    with held(site.prefect, home, "late") as (folder, go_on):
        (worker,) = (one for one in flow_of(folder).parents() if "worker" in one.cmdline())
        worker.suspend()
        try:
            (flow_run,) = flow_runs(api, "late")
            site.prefect("flow-run", "cancel", flow_run["id"])
            wait_for(lambda: "asked to stop: " in log_of(api, "late"), home)
            go_on.touch()
            wait_for(lambda: state(api, "late") == "CANCELLED", home)
        finally:
            worker.resume()
    assert folder.checkpoints()[-1].manifest.stopped_by == "request"
    assert lease.holder_of(folder.store) is None


def test_one_that_stays_away_does_not_keep_the_flow_and_shows_it_later(
    site: Site, server: OwnPrefect, api: str, home: Path, undisturbed: str
) -> None:
    with held(site.prefect, home, "away") as (folder, go_on):
        flow = flow_of(folder)
        server.fail(Way.KILLED, flow.pid)
        go_on.touch()
        wait_for(lambda: folder.report() is not None, home)
        with suppress(psutil.NoSuchProcess):
            flow.wait(END_WITHIN_S)
    assert is_like(folder, undisturbed)
    server.mend()
    # A run of the deployment would wait: the flow run that still says Running holds its place.
    site.evertrain("retrain", "--run", "next", "--epochs", "1", "--batch-size", "64")
    assert state(api, "away") == "COMPLETED"
    said = (home / "worker.log").read_text()
    # Prefect's worker itself, which has lost its server, too, is not ours.
    assert "FlowRunSuspendingObserver" not in said
    assert said.count("Prefect does not know that run 'away' has ended") == 1


def test_a_refused_login_ends_prefects_worker_and_the_next_worker_goes_on(
    tmp_path: Path, undisturbed: str
) -> None:
    """Prefect's worker ends itself at the first 401, and kills its flows."""
    heartbeat = {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_S)}
    with OwnPrefect(tmp_path) as server:
        api = server.environment["PREFECT_API_URL"]
        site = Site(tmp_path, isolated(tmp_path) | heartbeat, api)
        site.deploy(hasty_automations(tmp_path, MISSED_S))
        with site.worker() as worker, held(site.prefect, tmp_path, "refused") as (folder, go_on):
            flow = flow_of(folder)
            server.fail(Way.ANSWERS_401, flow.pid)
            go_on.touch()
            wait_for(lambda: worker.poll() is not None, tmp_path)
            wait_for(lambda: not flow.is_running(), tmp_path)
            server.mend()
            with site.worker():
                wait_for(lambda: state(api, "refused") == "COMPLETED", tmp_path, MISSED_S + 150)
    assert lease.newest_attempt(folder.store) == 2
    assert digest_of_training(folder) == undisturbed
