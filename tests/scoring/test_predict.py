"""Predictions as they are stored: which rows, which columns, in which pieces."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.scoring.tables import scored, trained
from train_core.errors import DataError
from train_core.rank.data.inputs import open_input
from train_core.rank.data.recorded_workload import load_recorded
from train_core.scoring import predict
from train_core.storage.records.manifest import PredictionsManifest
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import ResultWriter

pytestmark = pytest.mark.usefixtures("own_threads")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    made = RunFolder(str(tmp_path_factory.mktemp("runs")), "run")
    return trained(made, batch_size=8, eval_batch_size=16)


def houses(num_rows: int, **more: Any) -> pa.Table:
    rng = np.random.default_rng(1)
    return pa.table({"size": rng.normal(size=num_rows), "age": rng.normal(size=num_rows), **more})


@pytest.mark.promise("no-prediction-is-null")
def test_a_row_for_which_the_model_gives_nan_has_no_prediction(
    folder: RunFolder, tmp_path: Path
) -> None:
    table = pa.table({"size": [1.0, None, 2.0], "age": [1.0, 3.0, None], "note": [None, "a", "b"]})
    pq.write_table(table, tmp_path / "new.parquet")
    file, told = scored(folder, tmp_path)
    found = file.read().to_pydict()
    assert [one is None for one in found["prediction"]] == [False, True, True]
    assert np.isnan(found["probabilities"]).any(1).tolist() == [False, True, True]
    assert found["id"] == ["new.parquet#0", "new.parquet#1", "new.parquet#2"]
    assert told.without_prediction == 2
    assert told.first == "new.parquet#1, where size is null"
    one_by_one, _ = scored(folder, tmp_path, batch=1)
    assert one_by_one.read()["prediction"] == file.read()["prediction"]


@pytest.mark.promise("ids-kept")
def test_columns_of_the_input_are_stored_beside_the_predictions(
    folder: RunFolder, tmp_path: Path
) -> None:
    customers = [2**60 + 1, 7]
    pq.write_table(houses(2, customer=customers, city=["Jena", None]), tmp_path / "new.parquet")
    file, _ = scored(folder, tmp_path, id_column="customer", columns=("customer", "city"))
    names = ["id", "customer", "city", "prediction", "probabilities", "model_step"]
    assert file.schema_arrow.names == names
    found = file.read().to_pydict()
    assert found["id"] == [str(one) for one in customers]
    assert found["customer"] == customers
    assert found["city"] == ["Jena", None]


@pytest.mark.parametrize("name", ["prediction", "model_step", "id"])
def test_a_column_of_a_name_that_is_taken_is_refused(
    name: str, folder: RunFolder, tmp_path: Path
) -> None:
    pq.write_table(houses(2, **{name: [1, 2]}), tmp_path / "new.parquet")
    with pytest.raises(DataError, match=f"column {name!r} of the input cannot be stored beside"):
        scored(folder, tmp_path, columns=(name,))


@pytest.mark.promise("large-row-groups")
def test_row_groups_are_large_whatever_the_batches_are(folder: RunFolder, tmp_path: Path) -> None:
    num_rows = 2**16 + 1000
    pq.write_table(houses(num_rows), tmp_path / "new.parquet")
    file, _ = scored(folder, tmp_path, batch=2048)
    groups = [file.metadata.row_group(one).num_rows for one in range(file.num_row_groups)]
    assert sum(groups) == num_rows
    assert min(groups[:-1]) >= 2**16
    assert len(groups) == 2


@pytest.mark.promise("rows-apart")
def test_a_file_beside_another_changes_no_row(folder: RunFolder, tmp_path: Path) -> None:
    """Whatever it has: a column more, other types, text of another form."""
    alone = tmp_path / "alone"
    beside = tmp_path / "beside"
    for one in (alone, beside):
        one.mkdir()
        pq.write_table(houses(5, extra=[1, 2, 3, 4, 5]), one / "b.parquet")
    pq.write_table(pa.table({"size": [1, 2], "age": [3, None]}), beside / "a.parquet")
    pq.write_table(houses(3, extra=["x", "y", "z"], more=[1, 2, 3]), beside / "c.parquet")
    expected, _ = scored(folder, alone)
    file, _ = scored(folder, beside)
    rows = {row["id"]: row for row in file.read().to_pylist()}
    assert len(rows) == 10
    for row in expected.read().to_pylist():
        assert rows[row["id"]] == row


@pytest.mark.promise("plain-predictions")
def test_other_programs_read_the_folder_as_it_is(folder: RunFolder, tmp_path: Path) -> None:
    """With the manifest in it."""
    key = f"predictions/{folder.checkpoints()[-1].name}-aaaaaaaa"
    for number in (0, 1):
        source = tmp_path / f"part-0000{number}"
        source.mkdir()
        pq.write_table(houses(3), source / "new.parquet")
        scored(folder, source)
        folder.store.write(
            f"{key}/{source.name}.parquet", folder.store.read(f"predictions/{source.name}.parquet")
        )
    newest = folder.checkpoints()[-1]
    manifest = PredictionsManifest(
        created_at="2026-01-01T00:00:00Z",
        files=(),
        checkpoint=str(newest.name),
        checkpoint_digest=newest.digest,
        step=newest.step,
        input={},
        num_rows=6,
        rows=(3, 3),
    )
    ResultWriter(folder).commit_result(key, manifest)
    path = folder.store.path(key)
    assert len(pd.read_parquet(path)) == 6
    assert pq.read_table(path).num_rows == 6
    counted = duckdb.sql(f"SELECT count(*) FROM read_parquet('{path}/*.parquet')")
    assert counted.fetchall() == [(6,)]


@pytest.mark.promise("batch-beside-training")
def test_predictions_of_another_checkpoint_or_of_other_rows_are_not_taken(
    folder: RunFolder,
) -> None:
    newest = folder.checkpoints()[-1]
    workload = load_recorded(folder, folder.record().config)
    rows = open_input("validation", workload, with_digests=True)
    key = f"predictions/{newest.name}-bbbbbbbb"
    manifest = PredictionsManifest(
        created_at="2026-01-01T00:00:00Z",
        files=(ResultWriter(folder).write_result_file(f"{key}/part-00000.parquet", b"rows"),),
        checkpoint=str(newest.name),
        checkpoint_digest=newest.digest,
        step=newest.step,
        input=rows.describe(),
        num_rows=rows.num_rows,
        rows=(rows.num_rows,),
    )
    ResultWriter(folder).commit_result(key, manifest)
    assert predict._find(folder, newest, rows, "") == (key, manifest)
    # As of an attempt that has come to the same step with other weights.
    assert predict._find(folder, replace(newest, digest="0" * 64), rows, "") is None
    assert predict._find(folder, newest, replace(rows, digest="0" * 64), "") is None
    folder.store.delete(f"{key}/part-00000.parquet")
    assert predict._find(folder, newest, rows, "") is None
