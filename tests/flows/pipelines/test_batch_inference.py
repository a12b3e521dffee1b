"""The batch inference flow: the newest run scores new data, and its outcome is shown."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.datasets import load_digits

from benchmarks.services import BIN
from tests import commands
from tests.flows.mlflow_side import runs_in
from train_core import infer
from train_core.storage.objects.store import Store
from train_core.storage.predictions import committed_predictions
from train_core.storage.records.manifest import PredictionsManifest, read_manifest
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_reports import reported_best
from train_core.storage.run_writer import RunWriter

# The first one that needs the undisturbed pipeline waits for it.
pytestmark = pytest.mark.timeout(600)

NOBODY_LISTENS = "http://127.0.0.1:9"

FLOW = """
import json, sys
from evertrain_flows.cli import prefect_server
prefect_server.configure(verbose=True)
from evertrain_flows.batch_inference import batch_inference
for parameters in json.loads(sys.argv[1]):
    try:
        print(batch_inference(**parameters).model_dump_json())
    except ValueError as error:
        print(json.dumps({"refused": str(error)}))
"""


class Place:
    """A storage with the undisturbed run alone, and an MLflow that knows it, for flows of a test.

    Others compare what MLflow shows of the undisturbed run.
    """

    def __init__(self, home: Path, environment: dict[str, str], folder: Path) -> None:
        self.folder, self.storage, self._home = folder, str(folder / "runs"), home
        self.tracking_uri = f"sqlite:///{folder}/mlflow.db"
        self._environment = environment | {"MLFLOW_TRACKING_URI": self.tracking_uri}
        shutil.copytree(home / ".evertrain/runs/undisturbed", folder / "runs/undisturbed")
        shutil.copy(home / ".evertrain/mlflow.db", folder / "mlflow.db")

    def infer(self, *parameters: dict[str, Any]) -> tuple[list[dict[str, Any]], str]:
        """What each flow run gave or was refused for, and the log."""
        asked = json.dumps([{"storage": self.storage} | one for one in parameters])
        done = commands.succeed(
            [sys.executable, "-c", FLOW, asked], cwd=self.folder, env=self._environment
        )
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """`evertrain infer` with these arguments."""
        return commands.run(
            [str(BIN / "evertrain"), "infer", *arguments, "--storage", self.storage],
            cwd=self.folder,
            env=self._environment,
        )

    def shown_in_prefect(self, flow_run: str) -> list[tuple[str, str]]:
        """The key and the page of each artifact that flow runs of this name have."""
        asked = (
            "SELECT key, data FROM artifact JOIN flow_run ON artifact.flow_run_id = flow_run.id "
            "WHERE key IS NOT NULL AND flow_run.name = ?"
        )
        with closing(sqlite3.connect(self._home / "prefect-server/prefect.db")) as database:
            return list(database.execute(asked, (flow_run,)))


@pytest.fixture
def place(undisturbed: str, home: Path, environment: dict[str, str], tmp_path: Path) -> Place:
    return Place(home, environment, tmp_path)


def images(folder: Path, column: str, num_rows: int = 30) -> str:
    folder.mkdir()
    rows = pa.array(load_digits().images[:num_rows].tolist(), pa.list_(pa.list_(pa.float64())))
    names = [f"no {row}" for row in range(num_rows)]
    pq.write_table(pa.table({column: rows, "name": names}), folder / "new.parquet")
    return str(folder)


@pytest.mark.promise("infer-command", "batch-shown")
def test_one_command_scores_new_data_by_the_newest_run_and_the_address_is_everywhere(
    place: Place,
) -> None:
    source = images(place.folder / "night", "image")
    output = place.folder / "scored"
    newest = ("--run", "latest", "--workload", "tests.chaos.held:HeldDigits")
    kept = ("--id-column", "name", "--columns", "name", "--output", str(output))
    done = place.command(source, *newest, *kept, "--verbose")
    assert done.returncode == 0, done.stderr
    folder = RunFolder(place.storage, "undisturbed")
    best = reported_best(folder)
    assert done.stdout.splitlines()[-2:] == [
        f"30 rows of {source}, scored by {best} of run undisturbed",
        f"predictions: {output}",
    ]
    table = pq.read_table(output)
    assert table.column_names == ["id", "name", "prediction", "probabilities", "model_step"]
    assert table["id"].to_pylist() == table["name"].to_pylist()
    assert sorted(table["id"].to_pylist()) == sorted(f"no {row}" for row in range(30))
    assert "_manifest.json" in os.listdir(output)

    (result,) = [one for one in committed_predictions(folder) if one.source == source]
    assert (result.checkpoint.name, result.num_rows) == (best, 30)
    manifest, _ = read_manifest(Store(result.uri), PredictionsManifest, "_manifest.json")
    assert manifest.input["digest"] == result.input_digest
    logged = f"30 rows of {source}, scored by {best} of run undisturbed: {result.uri}"
    assert sum(line.endswith(logged) for line in done.stderr.splitlines()) == 1, done.stderr
    shown = place.shown_in_prefect(f"undisturbed {best}")
    ((key, page),) = ((key, page) for key, page in shown if result.uri in page)
    assert key == "helddigits-predictions"
    for fact in (result.uri, best, source, result.input_digest):
        assert fact in page
    (infer,) = (
        run
        for run in runs_in(place.tracking_uri, folder.url)
        + runs_in(place.tracking_uri, original_url(place))
        if run.data.tags["evertrain.stage"] == "infer"
    )
    assert infer.data.tags["evertrain.predictions"] == result.uri


@pytest.mark.promise("infer-command")
@pytest.mark.slow
def test_a_program_scores_files_without_rows_and_is_told_so(place: Place) -> None:
    source = images(place.folder / "night", "image", num_rows=0)
    done = infer(source, storage=place.storage, on_log=None)
    assert (done.num_rows, done.files) == (0, [])
    (told,) = [line for line in place.command(source).stdout.splitlines() if "nothing" in line]
    assert told == "nothing to score: the input has no rows"


def original_url(place: Place) -> str:
    """Where the run was when it was trained: MLflow says so."""
    report = RunFolder(place.storage, "undisturbed").report()
    assert report is not None
    return os.path.dirname(report["uri"])


@pytest.mark.slow
def test_what_cannot_be_done_is_refused_with_what_there_is(place: Place) -> None:
    source = images(place.folder / "night", "picture")
    found, _ = place.infer(
        {"infer_input": source},
        {"workload": "clinic:Clinic"},
        {"run": "undisturbed", "checkpoint": "step-00000001-a0001"},
    )
    missing, none, no_checkpoint = (one["refused"] for one in found)
    assert missing == f"{source}/new.parquet: column 'image' is missing, found name, picture"
    assert f"no finished run of clinic:Clinic in {place.storage}" in none
    assert "undisturbed (of tests.chaos.held:HeldDigits)" in none
    assert "has no checkpoint 'step-00000001-a0001'; it has" in no_checkpoint


@pytest.mark.promise("batch-without-mlflow")
@pytest.mark.slow
def test_predictions_are_made_though_mlflow_is_down(place: Place) -> None:
    folder = RunFolder(place.storage, "undisturbed")
    asked = folder.newest_request()
    away = asked.model_copy(update={"pipeline": asked.pipeline | {"tracking_uri": NOBODY_LISTENS}})
    RunWriter(folder, 1).amend(away)
    ((found,), log) = place.infer({"run": "undisturbed", "infer_input": "validation"})
    assert found["num_rows"] > 0
    (line,) = [line for line in log.splitlines() if "MLflow does not show" in line]
    assert "`evertrain mirror undisturbed` sends what it lacks" in line
