"""Three nights end in decisions that can be looked up, at Prefect's and at MLflow's API."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion

from evertrain_tasks.report.escaped_markdown import plain
from tests.flows.conftest import isolated
from tests.flows.deployment.champion_nights import MODEL, run_nights
from tests.flows.deployment.deployed import Server, all_flow_runs, found
from train_core.client.champions import champions, versions
from train_core.policy.champion.gate_decision import Outcome
from train_core.results import GateResult

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Nights:
    home: Path
    api: str

    @property
    def storage(self) -> str:
        return str(self.home / "runs")

    @property
    def mlflow(self) -> MlflowClient:
        return MlflowClient(f"sqlite:///{self.home}/mlflow.db", f"sqlite:///{self.home}/mlflow.db")

    @property
    def results(self) -> list[GateResult]:
        return [result for _, result in versions(self.storage, MODEL) if result]

    def mlflow_version(self, number: int) -> ModelVersion:
        return self.mlflow.get_model_version(MODEL, str(number))


@pytest.fixture(scope="module")
def nights(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nights]:
    if not os.environ.get("EVERTRAIN_DATA"):
        pytest.skip("EVERTRAIN_DATA is not set: the folder that has mnist and fashion-mnist")
    home = tmp_path_factory.mktemp("nights")
    with Server(home, isolated(home)) as server:
        run_nights(home, Path(os.environ["EVERTRAIN_DATA"]), server.url)
        yield Nights(home, server.url)


def test_a_first_champion_a_refusal_and_a_promotion(nights: Nights) -> None:
    first, second, third = nights.results
    runs = [one.decision.challenger.run for one in nights.results]
    assert runs == ["monday", "tuesday", "wednesday"]
    assert first.decision.champion is None
    assert first.entry is not None
    assert second.decision.outcome == Outcome.KEEP
    assert second.entry is None
    assert second.decision.evidence.improvement.high < 0
    assert third.decision.outcome == Outcome.PROMOTE
    assert third.decision.champion == first.decision.challenger
    assert third.decision.evidence.improvement.low > 0
    assert [one.version for one in champions(nights.storage, MODEL)] == [
        first.decision.challenger,
        third.decision.challenger,
    ]


def test_mlflow_has_the_versions_the_aliases_and_the_reasons(nights: Nights) -> None:
    for number, result in enumerate(nights.results, start=1):
        version = nights.mlflow_version(number)
        assert version.tags["evertrain.gate"] == result.decision.outcome
        assert version.tags["evertrain.run"] == result.decision.challenger.run
        assert result.decision.reasons[0] in version.description
        assert version.status == "READY"
    for alias in ("champion", "challenger"):
        version = nights.mlflow.get_model_version_by_alias(MODEL, alias)
        assert version.tags["evertrain.version"] == "3"


def test_prefect_has_the_evidence_of_each_night(nights: Nights) -> None:
    flow_runs = [run for run in all_flow_runs(nights.api) if run["deployment_id"]]
    assert [run["state_type"] for run in flow_runs] == ["COMPLETED"] * 3
    for run, result in zip(flow_runs, nights.results, strict=True):
        artifacts = found(nights.api, "artifacts", run["name"])
        pages = [str(one["data"]) for one in artifacts if one["type"] == "markdown"]
        assert any(plain(result.decision.reasons[0]) in page for page in pages)


def test_each_run_has_the_decision_in_its_report(nights: Nights) -> None:
    for result in nights.results:
        run = result.decision.challenger.run
        report = json.loads(Path(nights.storage, run, "report.json").read_text())
        assert GateResult.model_validate(report["gate"]).decision == result.decision
