"""A model of a table in MLflow: any column is served as it is scored."""

from __future__ import annotations

import json
import math
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest
from mlflow.exceptions import MlflowException
from mlflow.pyfunc.scoring_server import infer_and_parse_data, predictions_to_json

from tests.scoring.shops import customers
from tests.scoring.tables import scored, trained
from tests.tracking.following import mirrored
from tests.tracking.run_builder import write_report
from tests.tracking.test_models import load
from train_core.storage.run_folder import RunFolder

pytestmark = pytest.mark.usefixtures("own_threads", "as_users_modules")


def logged(folder: RunFolder, uri: str) -> str:
    """The address of the model of the newest checkpoint."""
    write_report(folder, folder.summary(folder.checkpoints()[-1]), {"accuracy": 0.75})
    return mirrored(folder, uri).tracking().model_uri


@pytest.mark.promise("any-column", "same-prepare")
def test_columns_of_all_types_are_trained_scored_and_served_alike(
    tmp_path: Path, tracking_uri: str
) -> None:
    folder = trained(RunFolder(str(tmp_path / "runs"), "run"), "shops:Shops", batch_size=8)
    source = tmp_path / "new"
    source.mkdir()
    table = customers(20).drop_columns("label")
    pq.write_table(table, source / "new.parquet")
    file, told = scored(folder, source, batch=3)
    expected = file.read()
    assert told.without_prediction == 0
    whole, _ = scored(folder, source, batch=20)
    assert whole.read()["prediction"] == expected["prediction"]
    served = load(tracking_uri, logged(folder, tracking_uri))
    found = served.predict(table.to_pandas())
    assert found["prediction"].tolist() == expected["prediction"].to_pylist()
    none = served.predict(table.slice(0, 0).to_pandas())
    assert (len(none), list(none.columns)) == (0, ["prediction", "probabilities"])


@pytest.mark.promise("no-prediction-is-null")
def test_a_served_model_has_no_prediction_where_it_gives_nan(
    tmp_path: Path, tracking_uri: str
) -> None:
    folder = trained(RunFolder(str(tmp_path / "runs"), "run"), "shops:Houses", batch_size=8)
    served = load(tracking_uri, logged(folder, tracking_uri))
    found = served.predict(pd.DataFrame({"size": [1.0, None, 2.0], "age": [1.0, 2.0, 3.0]}))
    assert found["prediction"].isna().tolist() == [False, True, False]
    # As a server answers: NaN is no JSON.
    answer = StringIO()
    predictions_to_json(found, answer)
    rows = json.loads(answer.getvalue(), parse_constant=pytest.fail)["predictions"]
    assert [row["prediction"] is None for row in rows] == [False, True, False]


def asked(served: Any, body: dict[str, Any]) -> pd.DataFrame:
    """What a server answers to this JSON."""
    schema = served.metadata.get_input_schema()
    data = infer_and_parse_data(json.loads(json.dumps(body)), schema)
    return served.predict(data)  # type: ignore[no-any-return]  # of MLflow's model


@pytest.mark.promise("any-column", "same-prepare")
def test_a_request_in_json_is_read_as_a_file_to_score(tmp_path: Path, tracking_uri: str) -> None:
    folder = trained(RunFolder(str(tmp_path / "runs"), "run"), "shops:Shops", batch_size=8)
    source = tmp_path / "new"
    source.mkdir()
    table = customers(24).drop_columns("label")
    pq.write_table(table, source / "new.parquet")
    expected = scored(folder, source)[0].read().to_pandas()
    served = load(tracking_uri, logged(folder, tracking_uri))

    frame = table.to_pandas()
    spelled = frame.assign(
        price=[None if one is None else float(one) for one in frame["price"]],
        since=[None if one is None else one.isoformat() for one in frame["since"]],
        visits=[list(map(int, one)) for one in frame["visits"]],
        age=[None if math.isnan(one) else one for one in frame["age"]],
        member=[None if one is None else bool(one) for one in frame["member"]],
    )
    zones = {"naive": "%Y-%m-%dT%H:%M:%S", "zone": "%Y-%m-%dT%H:%M:%SZ", "offset": ""}
    for name, form in zones.items():
        seen = [
            None
            if pd.isna(one)
            else one.strftime(form)
            if form
            else one.tz_localize("UTC").tz_convert("Europe/Berlin").isoformat()
            for one in frame["seen"]
        ]
        rows = [
            {key: None if one is pd.NaT else one for key, one in row.items()}
            for row in spelled.assign(seen=seen).astype(object).to_dict("records")
        ]
        rows = [
            {
                key: None if isinstance(one, float) and math.isnan(one) else one
                for key, one in row.items()
            }
            for row in rows
        ]
        for body in (
            {"dataframe_records": rows},
            {
                "dataframe_split": {
                    "columns": list(rows[0]),
                    "data": [list(r.values()) for r in rows],
                }
            },
        ):
            found = asked(served, body)
            assert found["prediction"].tolist() == expected["prediction"].tolist(), name
            assert np.allclose(
                np.stack(found["probabilities"]), np.stack(expected["probabilities"]), atol=1e-6
            ), name
    with_zone = frame.assign(seen=frame["seen"].dt.tz_localize("UTC"))
    assert served.predict(with_zone)["prediction"].tolist() == expected["prediction"].tolist()

    none = asked(served, {"dataframe_split": {"columns": list(rows[0]), "data": []}})
    assert (len(none), list(none.columns)) == (0, ["prediction", "probabilities"])
    (row, *_) = rows
    for name, value, said in (
        ("seen", 1_789_000_000_000, "holds numbers, and held times in training: write it as times"),
        ("seen", "09/15/2026", "holds texts, and held times in training"),
        ("member", "false", "holds texts, and held booleans"),
        ("plan", 7, "holds numbers, and held texts"),
        ("price", "many", "holds texts, and held numbers"),
    ):
        with pytest.raises(MlflowException, match=f"column '{name}' of the request {said}"):
            asked(served, {"dataframe_records": [row | {name: value}]})
    with pytest.raises(MlflowException, match="city"):
        asked(served, {"dataframe_records": [{k: v for k, v in row.items() if k != "city"}]})
