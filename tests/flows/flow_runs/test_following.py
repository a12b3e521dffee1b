"""Suspended flow runs are resumed once their runs have an answer: those at a real server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Suspended

from evertrain_flows.cli.app import main
from evertrain_flows.flow_runs.following import resume_answered
from tests.champion.samples import add_events, approval, decision, register, version
from tests.flows.conftest import isolated
from tests.flows.deployment.deployed import Server
from tests.storage.doubles.fault_proxy import Fault, FaultProxy, Kind
from tests.storage.samples import record
from train_core.policy.champion.gate_decision import Outcome
from train_core.results import ModelVersion
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import create_run

pytestmark = [pytest.mark.slow, pytest.mark.timeout(240)]


@flow(name="retrain")
def retrain() -> None:
    """What the flow runs are of."""


@flow(name="another")
def another() -> None:
    """Somebody else's, of which nothing is known here."""


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SyncPrefectClient]:
    """Of a real server; each test has a storage of its own, and flow runs that name it."""
    home = tmp_path_factory.mktemp("server")
    with (
        Server(home, isolated(home)) as server,
        temporary_settings({PREFECT_API_URL: server.url}),
        get_client(sync_client=True) as found,
    ):
        yield found


def suspended(
    client: SyncPrefectClient, run: str, storage: str = "", what: object = retrain
) -> FlowRun:
    """A flow run of a deployment that waits."""
    flow_id = client.create_flow(what)  # type: ignore[arg-type]  # any flow
    deployment = client.create_deployment(flow_id, f"of-{run}")
    parameters = {"parameters": {"run": run, "storage": storage}}
    made = client.create_flow_run_from_deployment(deployment, name=run, parameters=parameters)
    client.set_flow_run_state(made.id, Suspended(pause_key="approve-1-0"), force=True)
    return made


def asked(storage: str, of: ModelVersion, *, is_answered: bool) -> None:
    folder = RunFolder(storage, of.run)
    made = decision(of, outcome=Outcome.ASK)
    register(folder, of)
    add_events(storage, made, *[approval(made, is_approved=False)] * is_answered)


@pytest.mark.promise("approval-followed")
def test_those_go_on_whose_runs_have_an_answer_and_no_others(
    tmp_path: Path, client: SyncPrefectClient
) -> None:
    storage = str(tmp_path / "runs")
    for number, run in enumerate(("answered", "also", "alike"), start=1):
        asked(storage, version(number, run), is_answered=True)
    asked(storage, version(4, "open"), is_answered=False)
    made = {run: suspended(client, run) for run in ("answered", "open", "unknown")}
    made["also"] = suspended(client, "also", storage)
    made["alike"] = suspended(client, "alike", str(tmp_path / "other"))
    asked(storage, version(5, "theirs"), is_answered=True)
    made["theirs"] = suspended(client, "theirs", what=another)
    # The command names the run.
    assert resume_answered(client, storage, "open") == []
    assert resume_answered(client, storage, "answered") == ["answered"]
    assert resume_answered(client, storage) == ["also"]
    assert resume_answered(client, storage) == []
    states = {run: client.read_flow_run(one.id).state for run, one in made.items()}
    goes_on = {run for run, state in states.items() if state and state.is_scheduled()}
    assert goes_on == {"answered", "also"}
    assert {run for run, state in states.items() if state and state.is_paused()} == (
        made.keys() - goes_on
    )


@pytest.mark.promise("approval-followed")
def test_an_answer_is_followed_though_the_server_at_first_refuses_to_resume(
    tmp_path: Path, client: SyncPrefectClient, capsys: pytest.CaptureFixture[str]
) -> None:
    """As one does whose SQLite is locked in the middle of the request."""
    storage = str(tmp_path / "runs")
    create_run(RunFolder(storage, "one"), record("one"))
    asked(storage, version(1, "one"), is_answered=False)
    waits = suspended(client, "one", storage)
    answer = ["approve", "Digits", "1", "--reject", "--reason", "no", "--storage", storage]
    with FaultProxy(PREFECT_API_URL.value() or "") as proxy:
        proxy.schedule.add(Fault(Kind.REFUSE, "POST", "/resume", times=2))
        with temporary_settings({PREFECT_API_URL: f"{proxy.url}/api"}):
            main([*answer, "--tracking-uri", ""])
    assert proxy.schedule.seen == [3]
    assert "flow run one goes on" in capsys.readouterr().out
    state = client.read_flow_run(waits.id).state
    assert state is not None
    assert state.is_scheduled()
