"""The gate through the command line: a first champion, a refusal and a promotion, and what follows.

The three pipelines run once. A test that changes something does so in a copy of what they left.
"""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient
from mlflow.entities.model_registry import ModelVersion
from mlflow.exceptions import MlflowException

from benchmarks.services import answers_at, free_port, wait_until_up
from evertrain_flows.cli.app import main
from tests import commands
from tests.flows.conftest import Evertrain
from tests.flows.mlflow_side import mlflow_client
from train_core.champion.log import ModelLog
from train_core.datasets.protocols import fetch
from train_core.loading import load_workload
from train_core.results import ChampionEntry, GateResult, PredictionsResult, Report
from train_core.storage.objects.store import Store
from train_core.storage.records.manifest import PredictionsManifest, read_manifest
from train_core.storage.run_folder import RunFolder
from train_core.tracking.mlflow.models.lookups import model_id_of

# Three whole pipelines, one after the other.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

MODEL = "Digits"
RETRAIN = (
    *("retrain", "--batch-size", "64", "--gpus-per-worker", "0", "--num-workers", "1"),
    *("--max-recall-drop", "0.5", "--max-size-ratio", "1.5"),
)
PIPELINES = {
    "first": ("--max-steps", "40", "--epochs", "3"),
    "worse": ("--max-steps", "1"),
    "better": ("--epochs", "12"),
}
"""The runs in their order, each with what it is trained."""


class Place:
    """A storage and an MLflow, and the command line that uses both."""

    def __init__(self, folder: Path, evertrain: Evertrain) -> None:
        self.folder, self._evertrain = folder, evertrain
        self.storage, self.tracking_uri = str(folder / "runs"), f"sqlite:///{folder}/mlflow.db"
        self.log = ModelLog(self.storage, MODEL)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._evertrain(*arguments, "--storage", self.storage)

    def tracked(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self.run(*arguments, "--tracking-uri", self.tracking_uri)

    def said(self, *arguments: str) -> str:
        done = self.tracked(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def copied(self, folder: Path, *, without_mlflow: bool = False) -> Place:
        """The same at another place, for a test that changes something."""
        shutil.copytree(self.storage, folder / "runs")
        if not without_mlflow:
            shutil.copy(self.folder / "mlflow.db", folder / "mlflow.db")
        return Place(folder, self._evertrain)

    def report(self, run: str) -> Report:
        return Report.model_validate(RunFolder(self.storage, run).report())

    def gate(self, run: str) -> GateResult:
        found = self.report(run).gate
        assert found
        return found

    def champions(self) -> list[ChampionEntry]:
        return self.log.read().entries

    def aliases(self) -> dict[str, str]:
        """Where MLflow's aliases point to: a run and its version."""
        with mlflow_client(self.tracking_uri) as client:
            found = {}
            for alias in ("challenger", "champion"):
                try:
                    version = client.get_model_version_by_alias(MODEL, alias)
                except MlflowException:
                    continue
                found[alias] = f"{version.tags['evertrain.run']} {version.version}"
            return found


@dataclass(frozen=True)
class Gated:
    """What the three pipelines left, and what each of them has printed."""

    place: Place
    printed: dict[str, str]


@pytest.fixture(scope="module")
def gated(evertrain: Evertrain, tmp_path_factory: pytest.TempPathFactory) -> Gated:
    place = Place(tmp_path_factory.mktemp("gated"), evertrain)
    printed = {
        run: place.said(*RETRAIN, *length, "--run", run) for run, length in PIPELINES.items()
    }
    return Gated(place, printed)


@pytest.mark.promise("first-champion")
def test_the_first_run_is_the_first_champion(gated: Gated) -> None:
    result = gated.place.gate("first")
    assert result.entry
    assert (result.entry.number, result.entry.by) == (1, "gate")
    assert result.decision.champion is None
    assert "became champion: there was no champion before it, and accuracy" in result.summary


@pytest.mark.promise("gate-evidence")
def test_a_run_that_is_no_better_is_refused_with_the_evidence(gated: Gated) -> None:
    result = gated.place.gate("worse")
    decision = result.decision
    assert (result.entry, decision.outcome, result.status) == (None, "keep", "not promoted")
    assert decision.champion == gated.place.gate("first").decision.challenger
    found = decision.evidence
    assert found.improvement
    assert found.improvement.high < 0
    assert found.champion
    # The champion was scored anew, on the rows of the evaluation that its own run has reported.
    assert found.champion.metric == gated.place.report("first").test_metrics["accuracy"]
    assert found.challenger.metric == gated.place.report("worse").test_metrics["accuracy"]
    assert decision.comparison.num_rows == 360
    assert decision.comparison.mcnemar
    assert decision.comparison.mcnemar.p_value < 0.001


@pytest.mark.promise("gate-evidence")
def test_a_run_that_is_better_is_promoted_with_the_evidence(gated: Gated) -> None:
    result = gated.place.gate("better")
    assert result.entry
    assert result.entry.number == 2
    assert result.decision.outcome == "promote"
    assert result.decision.evidence.improvement
    assert result.decision.evidence.improvement.low > 0
    assert [one.version.run for one in gated.place.champions()] == ["first", "better"]
    assert json.loads(Path(result.decision_uri).read_text())["record"]["outcome"] == "promote"


@pytest.mark.promise("gate-evidence")
def test_the_terminal_has_one_line_that_says_why(gated: Gated) -> None:
    for run, printed in gated.printed.items():
        shown = " ".join(printed.split())
        assert gated.place.gate(run).summary in shown


@pytest.mark.promise("gate-evidence")
def test_prefects_page_of_the_run_has_the_evidence(gated: Gated, home: Path) -> None:
    asked = (
        "SELECT data FROM artifact JOIN flow_run ON artifact.flow_run_id = flow_run.id "
        "WHERE artifact.type = 'markdown' AND flow_run.name = 'worse'"
    )
    (database,) = home.glob("prefect*/prefect.db")
    with closing(sqlite3.connect(database)) as connection:
        pages = "\n".join(page for (page,) in connection.execute(asked))
    for shown in ("is not promoted", "McNemar", "ms for a row", "360 rows of the test split"):
        assert shown in pages


@pytest.mark.promise("mlflow-registered")
def test_mlflow_has_the_versions_with_the_decision_and_the_aliases(gated: Gated) -> None:
    place = gated.place
    assert place.aliases() == {"challenger": "better 3", "champion": "better 3"}
    with mlflow_client(place.tracking_uri) as client:
        versions = {one.tags["evertrain.run"]: one for one in all_versions(client)}
    assert {run: one.version for run, one in versions.items()} == {
        run: number for number, run in enumerate(PIPELINES, 1)
    }
    for run, one in versions.items():
        result = place.gate(run)
        assert one.tags["evertrain.version"] == str(one.version)
        assert one.tags["evertrain.gate"] == result.decision.outcome
        assert one.tags["evertrain.checkpoint"].endswith(place.report(run).best.name)
        assert first_line(one) == capitalized(result.outcome_line)
        assert result.decision_uri in one.description
        model_id = model_id_of(one.model_id, one.source)
        assert f"models:/{model_id}" == place.report(run).tracking.model_uri


@pytest.mark.promise("figures")
def test_a_run_that_was_compared_has_the_challenger_beside_the_champion_in_a_figure(
    gated: Gated,
) -> None:
    with mlflow_client(gated.place.tracking_uri) as client:
        shown = {
            run: {
                one.path
                for one in client.list_artifacts(gated.place.report(run).tracking.run_id, "gate")
            }
            for run in PIPELINES
        }
    decision, figure = "gate/decision.json", "gate/champion_and_challenger.png"
    assert shown == {
        "first": {decision},
        "worse": {decision, figure},
        "better": {decision, figure},
    }


def all_versions(client: MlflowClient) -> list[Any]:
    return list(client.search_model_versions(f"name='{MODEL}'"))


def first_line(version: ModelVersion) -> str:
    return str(version.description).splitlines()[0]


def capitalized(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}"


def model_page(place: Place) -> list[str]:
    """The lines of the registered model's description."""
    with mlflow_client(place.tracking_uri) as client:
        return str(client.get_registered_model(MODEL).description).splitlines()


@pytest.mark.promise("mlflow-champion")
def test_the_page_of_the_model_says_which_version_serves_since_when_and_why(gated: Gated) -> None:
    first, better = gated.place.champions()
    page = model_page(gated.place)
    assert page[0].startswith(f"**Version 3 serves** since {better.created_at[:10]} ")
    assert page[0].endswith(f" UTC: {better.reason}")
    assert [line for line in page if line.startswith("- ")] == [
        f"- version 3 of run `better`, {shown_time(better)}: {better.reason}",
        f"- version 1 of run `first`, {shown_time(first)}: {first.reason}",
    ]


def shown_time(entry: ChampionEntry) -> str:
    return f"{entry.created_at[:16].replace('T', ' ')} UTC"


@pytest.mark.promise("mlflow-champion")
def test_the_table_of_runs_has_a_view_with_the_decisions_of_the_model(gated: Gated) -> None:
    with mlflow_client(gated.place.tracking_uri) as client:
        experiment = client.get_experiment_by_name("evertrain")
        assert experiment
        view = json.loads(experiment.tags[f"mlflow.sharedViewState.evertrain-{MODEL}"])
        state = json.loads(view["state"])
        found = client.search_runs([experiment.experiment_id], state["searchFilter"])
    assert view["name"] == f"{MODEL}: champions"
    assert {run.info.run_name for run in found} == set(PIPELINES)
    tag, metric = "tags.`evertrain.gate`", "metrics.`test/accuracy`"
    assert set(state["selectedColumns"]) == {tag, metric}
    # The last columns: MLflow puts those that are not in the order behind them, out of the window.
    assert state["columnOrder"][-3:] == ["duration", metric, tag]
    assert all("evertrain.gate" in run.data.tags for run in found)
    assert all("test/accuracy" in run.data.metrics for run in found)


@pytest.mark.promise("champions-command")
def test_champions_says_which_version_served_when_and_why(gated: Gated) -> None:
    rows = json.loads(gated.place.run("champions", MODEL, "--json").stdout)
    assert [(row["version"], row["run"], row["status"]) for row in rows] == [
        (1, "first", "replaced"),
        (3, "better", "champion"),
    ]
    assert "an improvement of +" in rows[1]["why"]
    shown = gated.place.run("champions", MODEL, "--versions").stdout
    for word in (
        "became champion",
        "not promoted",
        "worse",
        *gated.place.gate("worse").decision.why.split()[:2],
    ):
        assert word in shown


@pytest.mark.promise("rollback")
def test_a_rollback_moves_the_champion_and_mlflows_alias(gated: Gated, tmp_path: Path) -> None:
    place = gated.place.copied(tmp_path)
    said = place.said("rollback", MODEL, "--reason", "the shop complains", "--by", "ann")
    assert said == "models:/Digits/1 is the champion: ann went back to it (the shop complains)\n"
    assert place.aliases() == {"challenger": "better 3", "champion": "first 1"}
    newest = place.champions()[-1]
    assert (newest.number, newest.version.run, newest.by) == (3, "first", "rollback")
    page = model_page(place)
    assert page[0].startswith("**Version 1 serves** since ")
    assert page[0].endswith(": ann went back to it (the shop complains)")
    assert len([line for line in page if line.startswith("- version 1 of run `first`")]) == 2


def test_what_somebody_wrote_about_a_model_stays(gated: Gated, tmp_path: Path) -> None:
    place = gated.place.copied(tmp_path)
    with mlflow_client(place.tracking_uri) as client:
        client.update_registered_model(MODEL, "Version 3 serves the shop.")
    place.said("rollback", MODEL, "--reason", "the shop complains", "--by", "ann")
    assert model_page(place) == ["Version 3 serves the shop."]


@pytest.mark.promise("one-line-refusal")
@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("champions", "Nobody"), "there is no registered model 'Nobody' in"),
        (("rollback", MODEL, "--to", "3", "--reason", "x"), "models:/Digits/3 is the champion alr"),
        (("rollback", MODEL, "--reason", ""), "reason"),
        (("approve", MODEL, "2", "--reason", "x"), "does not ask for an approval of models:/Digi"),
        (("runs", "delete", "better", "--yes"), "run 'better' has the champion models:/Digits/3"),
    ],
)
def test_what_cannot_be_done_is_refused_in_one_line(
    gated: Gated, arguments: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*arguments, "--storage", gated.place.storage]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert told in err
    assert err.count("\n") == 1
    assert RunFolder(gated.place.storage, "better").exists()


BATCH_INFERENCE = """
import json, sys
from evertrain_flows.cli import prefect_server
prefect_server.configure(verbose=True)
from evertrain_flows.batch_inference import batch_inference
for run in sys.argv[2:]:
    try:
        print(batch_inference(run=run, infer_input="test", storage=sys.argv[1]).model_dump_json())
    except ValueError as error:
        print(json.dumps({"refused": str(error)}))
"""


@pytest.mark.promise("address-of-a-model")
def test_a_batch_inference_takes_the_champion_and_records_its_version(
    gated: Gated, environment: dict[str, str], tmp_path: Path
) -> None:
    place = gated.place.copied(tmp_path)
    asked = ("models:/Digits@champion", "models:/Digits/1", "models:/Digits/9", "models:/Digits")
    done = commands.succeed(
        [sys.executable, "-c", BATCH_INFERENCE, place.storage, *asked],
        cwd=tmp_path,
        env=environment | {"MLFLOW_TRACKING_URI": place.tracking_uri},
    )
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for answer, run, version in zip(found, ("better", "first"), (3, 1), strict=False):
        result = PredictionsResult.model_validate(answer)
        manifest, _ = read_manifest(Store(result.uri), PredictionsManifest, "_manifest.json")
        assert manifest.model == f"models:/Digits/{version}"
        assert result.uri.startswith(f"{place.storage}/{run}/predictions/")
        assert result.checkpoint.name == place.log.read().version(version).checkpoint
    assert "has no version 9: 1, 2, 3" in found[2]["refused"]
    assert "'models:/Digits' names no version: models:/NAME@champion" in found[3]["refused"]


@pytest.mark.promise("approval")
def test_a_run_that_needs_approval_waits_for_it(gated: Gated, tmp_path: Path) -> None:
    place = gated.place.copied(tmp_path)
    # Its training is finished; what is new is the champion, whom nothing but a person prefers.
    asked = ("--require-approval", "--min-improvement=-1", "--max-recall-drop", "1")
    for run, answer, status in (
        ("worse", ("--reject",), "rejected"),
        ("first", (), "became champion"),
    ):
        printed = place.said(*RETRAIN, *PIPELINES[run], "--run", run, *asked)
        version = place.gate(run).decision.challenger.version
        assert f"models:/Digits/{version} waits for approval" in " ".join(printed.split())
        given = ("--reason", "looked at it", "--by", "ann", *answer)
        said = place.said("approve", MODEL, str(version), *given)
        word = "is rejected" if answer else "became champion in place of models:/Digits/3: approved"
        assert f'models:/Digits/{version} {word} by ann ("looked at it"): accuracy ' in said
        rows = json.loads(place.run("champions", MODEL, "--versions", "--json").stdout)
        assert {row["run"]: row["status"] for row in rows}[run] == status
        with mlflow_client(place.tracking_uri) as client:
            (shown,) = (one for one in all_versions(client) if one.tags["evertrain.run"] == run)
        line = said.strip().removeprefix(f"models:/Digits/{version} ").removeprefix("is ")
        assert first_line(shown) == capitalized(line)
    assert [one.version.run for one in place.champions()] == ["first", "better", "first"]
    assert place.aliases() == {"challenger": "better 3", "champion": "first 1"}


@pytest.mark.promise("mlflow-registered")
def test_an_mlflow_that_was_lost_is_written_again_with_the_aliases(
    gated: Gated, tmp_path: Path
) -> None:
    place = gated.place.copied(tmp_path, without_mlflow=True)
    for run in ("first", "worse"):
        place.said("mirror", run)
        # It does not have the champion yet.
        assert "champion" not in place.aliases()
    place.said("mirror", "better")
    assert place.aliases() == gated.place.aliases()
    with mlflow_client(place.tracking_uri) as client:
        versions = {one.tags["evertrain.run"]: one for one in all_versions(client)}
    with mlflow_client(gated.place.tracking_uri) as client:
        before = {one.tags["evertrain.run"]: one for one in all_versions(client)}
    for run, one in versions.items():
        assert one.version == before[run].version
        assert one.tags["evertrain.gate"] == before[run].tags["evertrain.gate"]
        assert first_line(one) == first_line(before[run])
    assert model_page(place) == model_page(gated.place)


@pytest.mark.promise("champion-stays")
def test_a_run_is_deleted_once_another_one_has_the_champion(gated: Gated, tmp_path: Path) -> None:
    place = gated.place.copied(tmp_path)
    place.said("rollback", MODEL, "--reason", "better is to go")
    place.said("runs", "delete", "better", "--yes")
    rows = json.loads(place.run("champions", MODEL, "--json").stdout)
    assert [row["run"] for row in rows] == ["first", "better", "first"]
    pruned = json.loads(place.run("prune", "first", "--dry-run", "--json").stdout)
    assert any("the champion models:/Digits/1" in row["why"] for row in pruned)
    versions = json.loads(place.run("champions", MODEL, "--versions", "--json").stdout)
    assert {row["run"]: row["status"] for row in versions}["better"] == "became champion"


@contextmanager
def served(place: Place, model: str, environment: dict[str, str]) -> Iterator[str]:
    """The address at which MLflow serves a model, by itself: evertrain is in the model."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "mlflow", "models", "serve", "-m", model),
        *("--env-manager", "local", "--host", "127.0.0.1", "--port", str(port)),
    ]
    own = {name: value for name, value in environment.items() if name != "PYTHONPATH"}
    more = {
        "MLFLOW_TRACKING_URI": place.tracking_uri,
        "MLFLOW_ALLOW_PICKLE_DESERIALIZATION": "false",
        # MLflow starts uvicorn by its name.
        "PATH": f"{Path(sys.executable).parent}:{environment['PATH']}",
    }
    log = place.folder / "serve.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command, cwd=place.folder, env=own | more, stdout=output, stderr=output
        ) as process,
    ):
        address = f"http://127.0.0.1:{port}"
        try:
            wait_until_up(lambda: answers_at(f"{address}/ping"), log, process)
            yield address
        finally:
            below = psutil.Process(process.pid).children(recursive=True)
            for one in (process, *below):
                with suppress(psutil.NoSuchProcess):
                    one.terminate()
            psutil.wait_procs(below, timeout=30)


@pytest.mark.promise("served")
def test_the_champion_is_served_and_answers_as_the_batch_inference_did(
    gated: Gated, environment: dict[str, str], tmp_path: Path
) -> None:
    place = gated.place.copied(tmp_path)
    report = place.report("better")
    assert report.predictions
    rows = pq.read_table(report.predictions.files).sort_by("id").to_pylist()
    # Rows of a split are called by their numbers, as test/17.
    workload = load_workload("train_core.workloads.digits:Digits", {})
    numbers = [int(row["id"].removeprefix("test/")) for row in rows]
    images = fetch(workload.dataset("test"), np.array(numbers))["image"]
    with served(place, f"models:/{MODEL}@champion", environment) as address:
        found = []
        for part in np.array_split(images, 3):
            request = urllib.request.Request(
                f"{address}/invocations",
                json.dumps({"inputs": {"image": part.tolist()}}).encode(),
                {"Content-Type": "application/json"},
            )
            with urllib.request.urlopen(request, timeout=60) as answer:
                found += json.load(answer)["predictions"]
    assert len(found) == len(rows) == 360
    assert [one["prediction"] for one in found] == [row["prediction"] for row in rows]
    for one, row in zip(found, rows, strict=True):
        assert one["probabilities"] == pytest.approx(row["probabilities"], abs=1e-6)
