"""A gate that asks a person: the flow run waits without a process, whatever is restarted."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from benchmarks.services import answers_at
from evertrain_flows.flow_runs.approval import WAITS
from tests.flows.conftest import isolated
from tests.flows.deployment.deployed import (
    Server,
    Site,
    flow_runs,
    got,
    hasty_automations,
    log_of,
    posted,
    state,
    wait_for,
)
from tests.flows.mlflow_side import mlflow_client
from train_core.champion.log import ModelLog
from train_core.client.champions import approve
from train_core.client.run_summaries import run_status
from train_core.results import GateResult, Report
from train_core.storage.coordination import lease
from train_core.storage.run_folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

MODEL = "Digits"
HEARTBEAT, HEARTBEAT_S, MISSED_S = "prefect.flow-run.heartbeat", 30, 75
ASKED = {
    "epochs": 2,
    "batch_size": 64,
    "gpus_per_worker": 0,
    "require_approval": True,
    "min_improvement": -1,
}


class Deployed:
    """A server and a worker, each of which can be restarted, and what they show."""

    def __init__(self, home: Path) -> None:
        environment = isolated(home) | {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_S)}
        self.home, self.server = home, Server(home, environment)
        self.site = Site(home, environment, self.server.url)
        self.log = ModelLog(str(home / "runs"), MODEL)
        self._worker = ExitStack()

    def start(self) -> None:
        self.server.start()
        if not (self.home / "deployed").exists():
            self.site.deploy(hasty_automations(self.home, MISSED_S))
            (self.home / "deployed").touch()
        self._worker.enter_context(self.site.worker())

    def stop(self) -> None:
        self._worker.close()
        self.server.stop()

    def retrain(self, run: str, **asked: Any) -> None:
        """Begin a flow run that has to be approved, and wait until it waits for that."""
        self.begin(run, **asked)
        self.wait_for_state(run, "PAUSED")

    def begin(self, run: str, **asked: Any) -> None:
        parameters = json.dumps({"run": run, **ASKED, **asked})
        self.site.prefect(
            "deployment", "run", "retrain/retrain", "--param", f"parameters={parameters}"
        )

    def wait_for_state(self, run: str, expected: str) -> None:
        ended = {"FAILED", "CRASHED", "CANCELLED"}

        def is_there() -> bool:
            if not flow_runs(self.server.url, run):
                # It has its name once it has begun.
                return False
            now = state(self.server.url, run)
            assert now == expected or now not in ended, log_of(self.server.url, run)
            return now == expected

        wait_for(is_there, self.home)

    def message(self, run: str) -> str:
        """What a flow run says that has completed."""
        self.wait_for_state(run, "COMPLETED")
        (flow_run,) = flow_runs(self.server.url, run)
        return str(flow_run["state"]["message"])

    def shown_in_mlflow(self, run: str) -> tuple[str, str]:
        """The run's status in MLflow, and its description."""
        with mlflow_client(f"sqlite:///{self.home}/mlflow.db") as client:
            every = [one.experiment_id for one in client.search_experiments()]
            named = f"attributes.run_name = '{run}'"
            (found,) = client.search_runs(every, filter_string=named)
        return found.info.status, found.data.tags["mlflow.note.content"]

    def state_name(self, run: str) -> str:
        (flow_run,) = flow_runs(self.server.url, run)
        return str(flow_run["state"]["name"])

    def question(self, run: str) -> str | None:
        """What tells the question that it waits for from others; None while it does not wait."""
        (flow_run,) = flow_runs(self.server.url, run)
        key: str | None = flow_run["state"]["state_details"]["pause_key"]
        return key

    def form(self, run: str) -> tuple[dict[str, Any], str]:
        """The fields that the reviewer fills in, and what stands above them."""
        (flow_run,) = flow_runs(self.server.url, run)
        keys = flow_run["state"]["state_details"]["run_input_keyset"]
        asked = f"{self.server.url}/flow_runs/{flow_run['id']}/input"
        found = []
        for url in (f"{asked}/{keys[part]}" for part in ("schema", "description")):
            # Prefect suspends the flow run first, and stores the form then.
            wait_for(partial(answers_at, url), self.home)
            found.append(got(url))
        return found[0]["properties"], found[1]

    def answer(self, run: str, **fields: Any) -> None:
        """What the button of Prefect's page does."""
        (flow_run,) = flow_runs(self.server.url, run)
        path = f"flow_runs/{flow_run['id']}/resume"
        answer = posted(self.server.url, path, {"run_input": fields})
        assert answer["status"] == "ACCEPT"

    def events(self, run: str) -> list[dict[str, Any]]:
        """The flow run's events that Prefect's server has, newest first."""
        (flow_run,) = flow_runs(self.server.url, run)
        resource = {"id": [f"prefect.flow-run.{flow_run['id']}"]}
        asked = {"filter": {"resource": resource, "order": "DESC"}, "limit": 50}
        found: list[dict[str, Any]] = posted(self.server.url, "events/filter", asked)["events"]
        return found

    def send_again(self, event: dict[str, Any], follows: str | None = None) -> str:
        """Send an event as if it happened now, after the one with the id `follows`; its new id.

        The server handles two events at a time, in any order, unless one says which it follows.
        """
        new = {"id": str(uuid.uuid4()), "occurred": datetime.now(UTC).isoformat()}
        posted(self.server.url, "events", [event | new | {"follows": follows}])
        return new["id"]

    def is_taken_for_dead(self, resource: dict[str, str]) -> bool:
        """Whether an automation was triggered by what was heard of that flow run last."""
        asked = {"filter": {"event": {"name": ["prefect.automation.triggered"]}}, "limit": 50}
        triggered = posted(self.server.url, "events/filter", asked)["events"]
        return any(resource["prefect.resource.id"] in json.dumps(one) for one in triggered)

    def crash(self, run: str) -> None:
        """What the automation does with a flow run that it takes for dead."""
        (flow_run,) = flow_runs(self.server.url, run)
        path, crashed = f"flow_runs/{flow_run['id']}/set_state", {"type": "CRASHED"}
        answer = posted(self.server.url, path, {"state": crashed, "force": True})
        assert answer["status"] == "ACCEPT"

    def gate(self, run: str) -> GateResult:
        report = Report.model_validate(RunFolder(str(self.home / "runs"), run).report())
        assert report.gate
        return report.gate

    def champions(self) -> list[str]:
        return [entry.version.run for entry in self.log.read().entries]


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    found = Deployed(tmp_path_factory.mktemp("approval"))
    found.start()
    try:
        yield found
    finally:
        found.stop()


@pytest.mark.promise("approval-suspended")
def test_an_approval_is_waited_for_through_restarts_and_makes_the_version_champion(
    deployed: Deployed,
) -> None:
    deployed.retrain("first")
    assert deployed.state_name("first") == "Suspended"
    (flow_run,) = flow_runs(deployed.server.url, "first")
    waiting = {"prefect.resource.id": f"prefect.flow-run.{flow_run['id']}"}
    fields, description = deployed.form("first")
    assert set(fields) == {"approve", "person", "reason"}
    assert fields["approve"]["default"] is False
    for shown in ("models:/Digits/1 waits for approval", "accuracy", "ms for a row", "360 rows"):
        assert shown in description
    folder = RunFolder(str(deployed.home / "runs"), "first")
    # Nothing waits: no process, and no lease.
    wait_for(lambda: lease.holder_of(folder.store) is None, deployed.home)
    # The process has sent its last event: it is no heartbeat, which would be missed later.
    wait_for(lambda: deployed.events("first")[0]["event"] == WAITS, deployed.home)
    with mlflow_client(f"sqlite:///{deployed.home}/mlflow.db") as client:
        (version,) = client.search_model_versions(f"name='{MODEL}'")
    assert version.description.startswith("Waits for approval: ")
    assert deployed.champions() == []

    deployed.stop()
    deployed.start()
    # A heartbeat may be sent between the suspension and the end of the process.
    sent = {event["event"]: event for event in deployed.events("first")}
    heartbeat = deployed.send_again(sent[HEARTBEAT])
    deployed.send_again(sent[WAITS], follows=heartbeat)
    # Nobody takes it for dead, although no heartbeat follows: another one, which says no more, is.
    silent = {"prefect.resource.id": f"prefect.flow-run.{uuid.uuid4()}"}
    deployed.send_again(sent[HEARTBEAT] | {"resource": silent})
    wait_for(lambda: deployed.is_taken_for_dead(silent), deployed.home)
    assert not deployed.is_taken_for_dead(waiting)
    assert state(deployed.server.url, "first") == "PAUSED"

    deployed.answer("first", approve=True, person="ann", reason="looked at it")
    deployed.wait_for_state("first", "COMPLETED")
    assert deployed.champions() == ["first"]
    result = deployed.gate("first")
    assert result.entry
    assert result.summary.startswith(
        'models:/Digits/1 became champion: approved by ann ("looked at it"): there was no'
    )
    # What was done before was not done again.
    answers = [one.version.run for one in deployed.log.read().approvals.values()]
    assert answers == [folder.name]
    assert {str(one.name.attempt) for one in folder.checkpoints()} == {"1"}
    with mlflow_client(f"sqlite:///{deployed.home}/mlflow.db") as client:
        champion = client.get_model_version_by_alias(MODEL, "champion")
    assert champion.tags["evertrain.run"] == "first"


@pytest.mark.promise("approval-followed", "no-is-final")
def test_a_flow_run_that_waits_is_shown_so_and_follows_an_answer_that_a_command_gave(
    deployed: Deployed,
) -> None:
    before = deployed.champions()
    deployed.retrain("second")
    folder = RunFolder(str(deployed.home / "runs"), "second")
    wait_for(lambda: lease.holder_of(folder.store) is None, deployed.home)
    assert deployed.state_name("second") == "Suspended"
    assert run_status(folder).state == "waiting"
    status, note = deployed.shown_in_mlflow("second")
    assert status == "SCHEDULED"
    assert "waits for approval" in note.splitlines()[0]
    assert "**Waiting**: for a person's answer" in note
    version = max(deployed.log.read().versions)
    answer = ("approve", MODEL, str(version), "--reject", "--reason", "owls suffer", "--by", "ann")
    assert "flow run second goes on" in deployed.site.evertrain(*answer)
    # It goes on at once; how long a worker takes for it depends on the machine.
    assert deployed.state_name("second") != "Suspended"
    deployed.wait_for_state("second", "COMPLETED")
    result = deployed.gate("second")
    assert (result.entry, result.status) == (None, "rejected")
    assert 'is rejected by ann ("owls suffer")' in result.summary
    assert run_status(folder).state == "finished"
    assert deployed.shown_in_mlflow("second")[0] == "FINISHED"
    assert deployed.champions() == before


@pytest.mark.promise("approval-suspended")
def test_one_that_is_taken_for_dead_while_it_waits_asks_again(deployed: Deployed) -> None:
    deployed.retrain("third")
    asked = deployed.question("third")
    deployed.crash("third")
    wait_for(lambda: deployed.question("third") not in (asked, None), deployed.home)
    assert deployed.state_name("third") == "Suspended"
    deployed.answer("third", approve=False, person="bob", reason="not on a Saturday")
    deployed.wait_for_state("third", "COMPLETED")
    assert 'is rejected by bob ("not on a Saturday")' in deployed.gate("third").summary


@pytest.mark.promise("approval-suspended")
def test_while_one_waits_others_run_and_one_that_is_overtaken_is_asked_again(
    deployed: Deployed,
) -> None:
    deployed.retrain("waiting")
    # The deployment runs one at a time, and this one waits for no slot.
    deployed.retrain("overtaking")
    deployed.answer("overtaking", approve=True, person="ann", reason="good")
    deployed.wait_for_state("overtaking", "COMPLETED")
    asked = deployed.question("waiting")
    deployed.answer("waiting", approve=True, person="ann", reason="good, too")
    # Its comparison was with a champion that is no more.
    wait_for(lambda: deployed.question("waiting") not in (asked, None), deployed.home)
    _, description = deployed.form("waiting")
    assert "of run `overtaking`" in description
    deployed.answer("waiting", approve=False, person="ann", reason="the other one is as good")
    deployed.wait_for_state("waiting", "COMPLETED")
    assert deployed.champions() == ["first", "overtaking"]


@pytest.mark.promise("approval-followed")
def test_an_answer_from_a_machine_without_prefect_is_followed_by_the_next_flow_run(
    deployed: Deployed,
) -> None:
    deployed.retrain("elsewhere", skip_unchanged=True, seed=8)
    version = max(deployed.log.read().versions)
    deployed.begin("night", skip_unchanged=True, seed=8)
    waits = f"run elsewhere, whose version {version} waits for approval, has it"
    assert deployed.message("night") == f"no new data: {waits}: nothing is trained"
    before = deployed.champions()
    approve(deployed.log.storage, MODEL, version, "no", is_approved=False, person="ann")
    assert deployed.state_name("elsewhere") == "Suspended"
    # This one has nothing to train either.
    deployed.begin("another-night", skip_unchanged=True, seed=8)
    said = "no new data since run elsewhere: nothing is trained"
    assert deployed.message("another-night") == said
    deployed.wait_for_state("elsewhere", "COMPLETED")
    assert 'is rejected by ann ("no")' in deployed.gate("elsewhere").summary
    assert deployed.champions() == before


@pytest.mark.promise("rollback")
def test_the_deployment_of_rollback_moves_the_champion(deployed: Deployed) -> None:
    before = deployed.champions()
    asked = {"model": MODEL, "reason": "the shop complains", "to": 1, "by": "ann"}
    parameters = [
        part for name, value in asked.items() for part in ("--param", f"{name}={json.dumps(value)}")
    ]
    shown = deployed.site.prefect("deployment", "run", "rollback/rollback", *parameters, "--watch")
    assert "finished" in shown.lower()
    assert deployed.champions() == [*before, "first"]
    # The flow run is named after the model.
    assert state(deployed.server.url, MODEL) == "COMPLETED"
    with mlflow_client(f"sqlite:///{deployed.home}/mlflow.db") as client:
        champion = client.get_model_version_by_alias(MODEL, "champion")
    assert champion.tags["evertrain.run"] == "first"
