"""A flow run of the deployment whose machine dies, its worker with it: nobody is left to say so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.flows.conftest import isolated
from tests.flows.deployment.deployed import (
    Server,
    Site,
    hasty_automations,
    held,
    kill_all,
    message,
    state,
    wait_for,
)
from tests.rank.digests import digest_of_training

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

# The shortest that Prefect has, and more than two of them.
HEARTBEAT_S, MISSED_S = 30, 75


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A server's home of its own: in the others', heartbeats are missed after ten minutes."""
    return tmp_path


@pytest.fixture
def machine_server(place: Path) -> Iterator[Server]:
    with Server(place, isolated(place)) as server:
        yield server


def evict(worker: psutil.Process) -> None:
    """As Kubernetes and Docker end a pod: SIGTERM to its first process, SIGKILL to all 30 s on."""
    below = worker.children(recursive=True)
    worker.terminate()
    psutil.wait_procs([worker], timeout=30)
    for one in [worker, *below]:
        with suppress(psutil.NoSuchProcess):
            one.kill()


@pytest.mark.parametrize("end", [kill_all, evict], ids=["power", "evicted"])
def test_a_run_whose_machine_dies_is_missed_and_goes_on_elsewhere(
    place: Path,
    machine_server: Server,
    undisturbed: str,
    end: Callable[[psutil.Process], None],
) -> None:
    environment = isolated(place) | {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_S)}
    site, api = Site(place, environment, machine_server.url), machine_server.url
    site.deploy(hasty_automations(place, MISSED_S))
    with site.worker() as worker, held(site.prefect, place, "alone") as (folder, go_on):
        end(psutil.Process(worker.pid))
        assert state(api, "alone") == "RUNNING"
        wait_for(lambda: state(api, "alone") != "RUNNING", place)
        # Crashed, and by now perhaps scheduled again by the other automation.
        assert "No heartbeat" in message(api, "alone") or state(api, "alone") == "SCHEDULED"
        go_on.touch()
        with site.worker():
            wait_for(lambda: state(api, "alone") == "COMPLETED", place)
    assert digest_of_training(folder) == undisturbed
    newest = folder.checkpoints()[-1]
    assert (newest.manifest.step, newest.name.attempt) == (60, 2)
