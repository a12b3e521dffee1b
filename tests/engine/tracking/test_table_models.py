"""A model of a table in MLflow: any column is served as it is scored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch

from tests.engine.scoring.tables import customers, scored, trained
from tests.engine.tracking.test_models import load
from train_core.engine.tracking.delivery.mirror import Mirror
from train_core.policy.end_status import EndStatus
from train_core.storage.run_folder import RunFolder


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Scoring sets their number for the process."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def logged(folder: RunFolder, uri: str) -> str:
    """The address of the model of the newest checkpoint."""
    mirror = Mirror(folder, uri, "tests")
    mirror.start()
    mirror.log_outcome(folder.summary(folder.checkpoints()[-1]), {"accuracy": 0.75})
    assert mirror.close(EndStatus.FINISHED)
    return mirror.tracking().model_uri


@pytest.mark.promise("any-column", "same-prepare")
def test_columns_of_all_types_are_trained_scored_and_served_alike(
    tmp_path: Path, tracking_uri: str
) -> None:
    folder = trained(RunFolder(str(tmp_path / "runs"), "run"), "Shops", batch_size=8)
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
    folder = trained(RunFolder(str(tmp_path / "runs"), "run"), batch_size=8)
    served = load(tracking_uri, logged(folder, tracking_uri))
    found = served.predict(pd.DataFrame({"size": [1.0, None, 2.0], "age": [1.0, 2.0, 3.0]}))
    assert found["prediction"].isna().tolist() == [False, True, False]
