"""A week of seven nights, as three lists tell it: Prefect's, MLflow's and `evertrain runs list`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.flows.conftest import isolated
from tests.flows.deployment.deployed import (
    Server,
    Site,
    flow_of,
    flow_runs,
    kill_all,
    own_prefect_file,
    states_of,
    wait_for,
)
from tests.flows.deployment.points import HELD, HOLD, deliver
from tests.flows.mlflow_side import mlflow_client
from train_core.champion.log import ModelLog
from train_core.storage.run_folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1500), pytest.mark.promise("week-is-told")]

MODEL = "Points"
ENDED = {"COMPLETED", "FAILED", "CRASHED", "CANCELLED"}
NIGHT_S = 300
"""The most that a night takes: beside other work on two cores each begins a Ray of its own."""


@dataclass(frozen=True)
class Told:
    """What the three lists show of a night."""

    prefect: str
    """The state's name."""
    message: str
    states: list[str]
    """The names of all states that the flow run had."""
    mlflow: str
    """The status; empty: MLflow has no such run."""
    note: str
    """What MLflow says of the run."""
    runs_list: str
    """The state; empty: there is no such run."""
    gate: str
    """What `runs list` says of its version."""


class Week:
    """A deployment with its server and its worker, for which the data of each night are made."""

    def __init__(self, home: Path) -> None:
        self.home, self.data = home, home / "data"
        self.data.mkdir()
        environment = isolated(home)
        self.server = Server(home, environment)
        self.site = Site(home, environment, self.server.url)
        self.log = ModelLog(str(home / "runs"), MODEL)
        self.nights: list[str] = []
        self.parameters = {
            "workload": "tests.flows.deployment.points:Points",
            "settings": {"data": str(self.data)},
            "epochs": 1,
            "batch_size": 16,
            "num_workers": 1,
            "checkpoint_every_steps": 2,
            "skip_unchanged": True,
            "min_improvement": -1,
        }

    def begin(self, night: str, **more: Any) -> None:
        """Begin a flow run of the deployment, as its schedule would."""
        # Prefect's own client asks again where its server's database is locked.
        parameters = f"parameters={json.dumps(self.parameters | {'run': night} | more)}"
        asked = ("--flow-run-name", night, "--param", parameters)
        self.site.prefect("deployment", "run", "retrain/retrain", *asked)
        self.nights.append(night)

    def run(self, night: str, **more: Any) -> None:
        """A night that nobody disturbs."""
        self.begin(night, **more)
        self.wait_until_ended(night)

    def wait_until_ended(self, night: str) -> None:
        wait_for(lambda: self.state(night)["type"] in ENDED, self.home, NIGHT_S)

    def state(self, night: str) -> dict[str, Any]:
        found: dict[str, Any] = self.flow_run(night)["state"]
        return found

    def flow_run(self, night: str) -> dict[str, Any]:
        (found,) = flow_runs(self.server.url, night)
        return found

    def folder(self, night: str) -> RunFolder:
        return RunFolder(str(self.home / "runs"), night)

    def champion(self) -> str:
        return self.log.read().entries[-1].version.run

    def told(self) -> dict[str, Told]:
        """What the lists show, once all is over."""
        listed = json.loads(self.site.evertrain("runs", "list", "--json"))
        in_list = {row["run"]: row for row in listed}
        in_mlflow = {}
        with mlflow_client(f"sqlite:///{self.home}/mlflow.db") as client:
            experiments = [one.experiment_id for one in client.search_experiments()]
            for run in client.search_runs(experiments):
                if run.data.tags.get("evertrain.stage") == "pipeline":
                    in_mlflow[run.info.run_name] = run
        told = {}
        for night in self.nights:
            flow_run, run, row = (
                self.flow_run(night),
                in_mlflow.get(night),
                in_list.get(night, {}),
            )
            state = flow_run["state"]
            states = [str(one["name"]) for one in states_of(self.server.url, flow_run["id"])]
            told[night] = Told(
                prefect=state["name"],
                message=state["message"] or "",
                states=states,
                mlflow=run.info.status if run else "",
                note=run.data.tags.get("mlflow.note.content", "") if run else "",
                runs_list=row.get("state", ""),
                gate=row.get("gate", ""),
            )
        return told


def kill_in_the_middle(week: Week, night: str) -> None:
    """Kill the flow's process while the training stands still."""
    (week.data / HOLD).touch()
    week.begin(night)
    wait_for((week.data / HELD).exists, week.home, NIGHT_S)
    flow = flow_of(week.folder(night))
    kill_all(flow)
    (week.data / HOLD).unlink()
    (week.data / HELD).unlink()


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Told]]:
    week = Week(tmp_path_factory.mktemp("week"))
    with week.server:
        week.site.deploy(file=own_prefect_file(week.home / "own", **week.parameters))
        with week.site.worker():
            deliver(week.data, 400)
            week.run("monday")
            week.run("tuesday")
            deliver(week.data, 410, y="height")
            week.run("wednesday")
            deliver(week.data, 420)
            points = week.data / "points.parquet"
            points.write_bytes(points.read_bytes()[:-500])
            week.run("thursday")
            deliver(week.data, 430)
            kill_in_the_middle(week, "friday")
            wait_for(lambda: week.folder("friday").report() is not None, week.home, NIGHT_S)
            week.wait_until_ended("friday")
            assert week.champion() == "friday"
            deliver(week.data, 440)
            week.begin("saturday", require_approval=True)
            wait_for(lambda: week.state("saturday")["type"] == "PAUSED", week.home, NIGHT_S)
            answer = ("--reason", "not on a Saturday", "--by", "ann")
            week.site.evertrain("approve", MODEL, "3", "--reject", *answer)
            week.wait_until_ended("saturday")
            deliver(week.data, 450)
            week.run("sunday")
            assert week.champion() == "sunday"
            yield week.told()


def test_a_good_night_is_told_as_one_that_became_champion(told: dict[str, Told]) -> None:
    for night in ("monday", "sunday"):
        one = told[night]
        assert one.runs_list == "finished"
        assert one.mlflow == "FINISHED"
        assert "became champion" in one.note
        assert one.prefect == "Promoted"


def test_a_night_without_news_is_told_as_skipped(told: dict[str, Told]) -> None:
    one = told["tuesday"]
    assert (one.prefect, one.mlflow, one.runs_list) == ("Skipped", "", "")
    assert "no new data since run monday" in one.message


def test_a_night_of_another_schema_is_told_with_the_file_and_the_column(
    told: dict[str, Told],
) -> None:
    one = told["wednesday"]
    assert (one.mlflow, one.runs_list) == ("", "")
    assert "points.parquet" in one.message
    assert 'Field "y" does not exist' in one.message
    assert "AwaitingRetry" not in one.states


def test_a_night_of_a_corrupt_file_is_told_with_the_file(told: dict[str, Told]) -> None:
    one = told["thursday"]
    assert (one.mlflow, one.runs_list) == ("", "")
    assert "points.parquet" in one.message
    assert "AwaitingRetry" not in one.states


def test_a_night_that_was_killed_is_told_as_one_that_went_on_and_became_champion(
    told: dict[str, Told],
) -> None:
    one = told["friday"]
    assert {"Crashed", "AwaitingRetry"} <= set(one.states)
    assert (one.prefect, one.mlflow, one.runs_list) == ("Promoted", "FINISHED", "finished")
    assert "became champion" in one.note
    assert one.gate == "2 became champion"
    assert "in attempt 2 (attempt 1 was killed)" in one.note
    # It became champion though it may be worse: which rule let it pass is told.
    assert "in place of models:/Points/1: " in one.note
    assert ", which min_improvement -1 allows" in one.note


def test_a_night_that_a_person_rejected_is_told_as_rejected(told: dict[str, Told]) -> None:
    one = told["saturday"]
    assert (one.prefect, one.mlflow, one.runs_list) == ("Rejected", "FINISHED", "finished")
    assert one.gate == "3 rejected"
    assert 'rejected by ann ("not on a Saturday")' in one.note
    assert 'rejected by ann ("not on a Saturday")' in one.message


def test_the_nights_that_ended_badly_differ_from_the_others_at_a_glance(
    told: dict[str, Told],
) -> None:
    good = {told[night].prefect for night in ("monday", "friday", "sunday")}
    bad = {told[night].prefect for night in ("wednesday", "thursday")}
    others = {told["tuesday"].prefect, told["saturday"].prefect}
    assert len(others) == 2
    # Nothing is in two of the three.
    assert len(good | bad | others) == len(good) + len(bad) + len(others)
