"""The example of a table: from a folder of Parquet files to a champion that answers requests."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tests import commands
from tests.flows.conftest import ROOT, Evertrain
from train_core import open_run

EXAMPLES = ROOT / "docs" / "examples"

SERVED = """
import json, sys
import mlflow, pandas as pd
mlflow.set_tracking_uri(sys.argv[1])
model = mlflow.pyfunc.load_model(sys.argv[2])
asked = pd.read_json(sys.stdin, orient="records", convert_dates=["signed_up_on", "seen_on"])
print(model.predict(asked).to_json(orient="records"))
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.promise("fitted")
def test_a_folder_of_customers_becomes_a_champion_that_answers(
    evertrain: Evertrain, home: Path, environment: dict[str, str], tmp_path: Path
) -> None:
    customers, storage = tmp_path / "customers", str(tmp_path / "runs")
    subprocess.run([sys.executable, EXAMPLES / "churn.py", customers, "3000"], check=True)
    given = {
        "EVERTRAIN_PATH": str(EXAMPLES),
        "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db",
    }
    asked = ["--workload", "churn:Churn", "--settings", json.dumps({"customers": str(customers)})]
    trained = evertrain(
        "retrain",
        *asked,
        "--epochs",
        "4",
        "--batch-size",
        "64",
        "--run",
        "first",
        "--storage",
        storage,
        "--num-workers",
        "1",
        **given,
    )
    assert trained.returncode == 0, trained.stderr
    assert "models:/Churn/1 became champion" in trained.stdout
    run = open_run(storage, "first")
    # Of one in eight a coin would be right in one of eight.
    assert run.test_metrics["average_precision"] > 0.25
    scored = evertrain(
        "infer",
        str(customers),
        "--run",
        "latest",
        "--storage",
        storage,
        "--id-column",
        "customer_id",
        "--output",
        str(tmp_path / "scored"),
        **given,
    )
    assert scored.returncode == 0, scored.stderr
    table = pd.read_parquet(tmp_path / "scored").set_index("id")
    assert sorted(map(int, table.index)) == list(range(3000))
    pd.testing.assert_frame_equal(run.predictions().set_index("id"), table)
    # The served model has what was fitted, and needs no file of the training.
    rows = pd.read_parquet(customers).head(50).drop(columns=["left"])
    customers.rename(tmp_path / "elsewhere")
    served = commands.succeed(
        [sys.executable, "-c", SERVED, given["MLFLOW_TRACKING_URI"], "models:/Churn@champion"],
        input=rows.to_json(orient="records", date_format="iso"),
        env=environment,
        cwd=home,
    )
    answers = pd.DataFrame(json.loads(served.stdout.splitlines()[-1]))
    expected = table.loc[rows["customer_id"].astype(str)]
    assert answers["prediction"].tolist() == expected["prediction"].tolist()
    np.testing.assert_allclose(
        np.stack(answers["probabilities"]), np.stack(expected["probabilities"]), atol=1e-5
    )
