"""What earlier versions of evertrain have stored is read, continued and served by this one.

`before_rooms` was written by commit d9bd3b8, before train_core's modules were moved:
`evertrain retrain --epochs 2 --keep-last 1 --keep-best 1 --batch-size 64 --num-workers 1
--num-shards 2 --settings '{"width": 2}'`, and the model that MLflow had of it, without the code
that travels with it.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import mlflow.pyfunc
import numpy as np
import pyarrow.parquet as pq
import pytest

from train_core.client.checkpoints import verify_run
from train_core.client.run_summaries import list_runs
from train_core.client.runs import open_run
from train_core.config import TrainConfig
from train_core.loading import load_workload
from train_core.rank.data.recorded_workload import with_monitor
from train_core.rank.distributed.group import Group
from train_core.rank.loop import Trainer
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import begin_attempt

WRITTEN = Path(__file__).parent / "before_rooms"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    shutil.copytree(WRITTEN / "run", tmp_path / "before")
    return open_run(str(tmp_path), "before").folder


@pytest.mark.promise("earlier-versions")
def test_a_run_is_listed_and_verified(folder: RunFolder) -> None:
    (run,) = list_runs(folder.storage)
    assert (run.state, run.step, run.workload) == ("finished", 40, "Digits")
    assert {one.what: one.faults for one in verify_run(folder) if one.faults} == {}
    assert "step-00000040-a0001" in [one.what for one in verify_run(folder)]


@pytest.mark.promise("earlier-versions")
def test_a_run_is_continued(folder: RunFolder) -> None:
    config = TrainConfig(**folder.newest_request().config.model_dump() | {"epochs": 3})
    held = begin_attempt(folder)
    progress = Trainer(folder, with_monitor(config), held.attempt, Group.current()).run()
    held.release()
    assert (held.attempt, progress.step, progress.epoch) == (2, 60, 3)
    # The one that its first report names stays.
    assert [checkpoint.manifest.step for checkpoint in folder.checkpoints()] == [40, 60]
    assert not [one for one in verify_run(folder) if one.faults]


@pytest.mark.promise("earlier-versions")
def test_a_logged_model_predicts_what_the_batch_inference_of_that_time_predicted() -> None:
    served = mlflow.pyfunc.load_model(str(WRITTEN / "model"))
    workload = load_workload("train_core.workloads.digits:Digits", {"width": 2})
    images = workload.dataset("test")
    raw = images.__getitems__(np.arange(len(images)))["image"]
    found = served.predict({"image": raw})
    parts = sorted((WRITTEN / "run/predictions").glob("*/part-*.parquet"))
    stored = pq.ParquetDataset(parts).read().to_pydict()
    assert found["prediction"].tolist() == stored["prediction"]
    probabilities = np.array(found["probabilities"].tolist())
    np.testing.assert_allclose(probabilities, np.array(stored["probabilities"]), atol=1e-5)
