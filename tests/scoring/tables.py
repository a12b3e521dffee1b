"""A run that is trained in this process on a table that may lack values, and scored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from tests.rank.alone import create, run
from tests.scoring import shops
from train_core.config import TrainConfig
from train_core.datasets.forms import forms_in
from train_core.datasets.protocols import SPLITS
from train_core.datasets.recorded import describe_data
from train_core.loading import load_workload
from train_core.rank.data.inputs import open_input
from train_core.rank.data.recorded_workload import load_recorded
from train_core.requests import KeptColumns
from train_core.scoring import predict
from train_core.storage.run_folder import RunFolder
from train_core.workload import load_split

HOUSES, SHOPS = (f"{shops.__name__}:{name}" for name in ("Houses", "Shops"))


def trained(folder: RunFolder, workload: str = HOUSES, **config: object) -> RunFolder:
    """The folder, with a run of one epoch in it."""
    asked: dict[str, Any] = {"batch_size": 32, "eval_batch_size": 16, **config}
    training = TrainConfig(workload=workload, epochs=1, **asked)
    loaded = load_workload(training.workload, {})
    datasets = {}
    for split in SPLITS:
        data = load_split(loaded, split)
        datasets[split] = describe_data(data) | {"columns": forms_in(data)}
    create(folder, training, datasets=datasets)
    run(folder, workload=workload, epochs=1, **config)
    return folder


def scored(folder: RunFolder, source: Path, batch: int = 16, **keeps: Any) -> Any:
    """The only output file's table, and what is told of it."""
    config = folder.record().config
    workload = load_recorded(folder, config)
    found = open_input(str(source), workload, KeptColumns(**keeps), with_digests=True)
    ranges = [range(i, min(i + batch, found.num_rows)) for i in range(0, found.num_rows, batch)]
    (newest,) = folder.checkpoints()[-1:]
    key = f"predictions/{source.name}.parquet"
    told = predict.score_one_part(folder.url, config, str(newest.name), found, ranges, key)
    return pq.ParquetFile(folder.store.path(key)), told
