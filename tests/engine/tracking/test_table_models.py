"""A model of a table in MLflow: any column is served as it is scored."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

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
    newest = folder.checkpoints()[-1]
    mirror = Mirror(folder, tracking_uri, "tests")
    mirror.start()
    mirror.log_outcome(folder.summary(newest), {"accuracy": 0.75})
    assert mirror.close(EndStatus.FINISHED)
    served = load(tracking_uri, mirror.tracking().model_uri)
    found = served.predict(table.to_pandas())
    assert found["prediction"].tolist() == expected["prediction"].to_pylist()
    assert len(served.predict(table.slice(0, 0).to_pandas())) == 0
