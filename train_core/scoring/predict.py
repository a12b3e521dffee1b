"""Batch inference: rows scored by a checkpoint on the workers of a pool, stored as Parquet.

The rows are cut into batches of `eval_batch_size` and those into `num_shards` parts, so that
the predictions have the same bits on any number of workers.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from train_core.cluster.pool import WorkerPool
from train_core.config import TrainConfig
from train_core.datasets.arrays import is_null
from train_core.entry_points import SCORE_PART
from train_core.errors import DataError, WorkloadError, users_code
from train_core.policy.logins import hide_logins
from train_core.policy.samples.randomness import EVALUATE, derive_seed
from train_core.rank.data.batches import to_device
from train_core.rank.data.inputs import Input, Rows, open_input, read_input
from train_core.rank.data.prepared import rows_without_prediction
from train_core.rank.data.raw_columns import prepared
from train_core.rank.data.recorded_workload import load_recorded
from train_core.rank.distributed.watchdog import watching
from train_core.rank.metrics.evaluation_loop import batches_of_shard
from train_core.rank.metrics.forward import RESERVED, predict
from train_core.requests import KeptColumns
from train_core.results import CheckpointSummary, PredictionsResult
from train_core.scoring.evaluate import load_model
from train_core.storage.objects.digest_algorithm import new_digest
from train_core.storage.predictions import result_of
from train_core.storage.records.manifest import FileEntry, PredictionsManifest
from train_core.storage.records.names import PREDICTIONS, CheckpointName
from train_core.storage.records.verified_files import are_there
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.run_writer import ResultWriter
from train_core.text.log_lines import set_up_logging
from train_core.workload import Workload, seed_generators

_GROUP_ROWS, _GROUP_BYTES = 2**16, 2**27
"""A row group has this many rows, or fewer of so many bytes: a reader holds one in memory."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Part:
    """An output file that was written."""

    entry: FileEntry
    rows: int
    without_prediction: int
    first: str
    """The first row without a prediction, in words; empty if there is none."""


def infer(
    pool: WorkerPool,
    writer: ResultWriter,
    config: TrainConfig,
    summary: CheckpointSummary,
    source: str,
    max_batches: int = 0,
    model: str = "",
    keeps: KeptColumns | None = None,
) -> PredictionsResult:
    """Score the rows at `source` (a split or a URL) with a checkpoint; there may be no rows.

    A result that was committed earlier for the same checkpoint and input is reused. `max_batches`
    scores a part of the rows, for a dry run; 0: all of them. `model` is recorded: the registered
    version that was asked for. Raises FencedError, and commits
    nothing, if the writer's attempt was replaced.
    """
    folder = writer.folder
    checkpoint = folder.find(summary.name)
    found = open_input(source, load_recorded(folder, config), keeps, with_digests=True)
    key, manifest = _find(folder, checkpoint, found, model) or _run(
        pool, writer, config, checkpoint, found, max_batches, model
    )
    return result_of(folder, key, manifest, summary)


def _run(
    pool: WorkerPool,
    writer: ResultWriter,
    config: TrainConfig,
    checkpoint: Commit,
    found: Input,
    max_batches: int,
    model: str,
) -> tuple[str, PredictionsManifest]:
    num_rows = found.num_rows
    if max_batches:
        num_rows = min(num_rows, max_batches * config.eval_batch_size)
    key = f"{PREDICTIONS}/{checkpoint.name}-{uuid.uuid4().hex[:8]}"
    written: list[_Part] = pool.map(
        SCORE_PART,
        [
            (writer.folder.url, config, str(checkpoint.name), found, ranges, f"{key}/{name}")
            for name, ranges in _parts(num_rows, config)
        ],
    )
    manifest = PredictionsManifest(
        created_at=datetime.now(UTC).isoformat(),
        files=tuple(part.entry for part in written),
        checkpoint=str(checkpoint.name),
        checkpoint_digest=checkpoint.digest,
        step=checkpoint.step,
        input=found.describe(),
        num_rows=sum(part.rows for part in written),
        rows=tuple(part.rows for part in written),
        without_prediction=sum(part.without_prediction for part in written),
        model=model,
    )
    told = next((part.first for part in written if part.first), "")
    if told:
        _log.warning(
            "%d of %d rows have no prediction: the model gives NaN for them. The first: %s",
            manifest.without_prediction,
            manifest.num_rows,
            told,
        )
    writer.commit_result(key, manifest)
    return key, manifest


def _parts(num_rows: int, config: TrainConfig) -> Iterator[tuple[str, list[range]]]:
    """The name and the batches of each output file that has rows."""
    for shard in range(config.shards):
        ranges = batches_of_shard(num_rows, config.eval_batch_size, config.shards, shard)
        if ranges:
            yield f"part-{shard:05d}.parquet", ranges


def _find(
    folder: RunFolder, checkpoint: Commit, found: Input, model: str
) -> tuple[str, PredictionsManifest] | None:
    """Predictions of the same checkpoint for a split that were committed earlier.

    Predictions for files are always made anew: the workload may have been mended meanwhile.
    """
    if found.kind != "split":
        return None
    wanted = found.describe()
    for key, manifest in folder.results(PREDICTIONS, PredictionsManifest):
        if (
            manifest.checkpoint_digest == checkpoint.digest
            # An older evertrain wrote no digest.
            and {"digest": found.digest} | manifest.input == {"digest": ""} | wanted
            and manifest.num_rows == found.num_rows
            and model in ("", manifest.model)
            and are_there(folder.store, key, manifest.files)
        ):
            return key, manifest
    return None


def score_one_part(
    url: str, config: TrainConfig, checkpoint: str, found: Input, ranges: list[range], key: str
) -> _Part:
    """Score the batches of one output file and store it."""
    set_up_logging(sys.stderr)
    folder = RunFolder.at(url)
    name = CheckpointName.parse(checkpoint)
    assert name is not None
    rows = _OutputRows()
    with (
        users_code("infer", f"{key} from {hide_logins(found.source)}"),
        tempfile.TemporaryFile() as file,
        torch.no_grad(),
    ):
        workload, model, device = load_model(url, config, checkpoint)
        # The watchdog covers scoring only: storing the file has time limits of its own.
        with watching(config.hang_timeout_s) as watchdog:
            for samples in ranges:
                watchdog.move()
                seed_generators(derive_seed(config.seed, EVALUATE, samples.start))
                for some in read_input(found, workload, samples):
                    predictions = _predicted(some, workload, model, device, config)
                    rows.add(some, predictions, name.step, file)
        rows.close(file)
        # Where /dev/fd shares the position (not on Linux), the upload reads from here.
        file.seek(0)
        # The file has no name in a folder, so that its space is freed however this process ends.
        path = Path(f"/dev/fd/{file.fileno()}")
        ResultWriter(folder).upload_result_file(path, key)
        entry = FileEntry(
            name=key.rpartition("/")[2],
            size_bytes=path.stat().st_size,
            digest=new_digest().update_mmap(path).hexdigest(),
        )
        return _Part(entry, rows.num_rows, rows.without_prediction, rows.first)


def _predicted(
    rows: Rows,
    workload: Workload[Any],
    model: nn.Module,
    device: torch.device,
    config: TrainConfig,
) -> Mapping[str, Tensor]:
    """The predictions of some rows."""
    batch = to_device(
        prepared(workload, rows.columns, rows.ids), device, channels_last=config.channels_last
    )
    return predict(workload, model, batch, config)


class _OutputRows:
    """The rows of an output file, written as row groups of many batches."""

    def __init__(self) -> None:
        self.num_rows = self.without_prediction = 0
        self.first = ""
        self._writer: pq.ParquetWriter | None = None
        self._waiting: list[pa.Table] = []

    def add(
        self, rows: Rows, predictions: Mapping[str, Tensor], step: int, file: IO[bytes]
    ) -> None:
        """Add rows; a prediction that is a number is null where the model gives NaN for the row.

        Raises WorkloadError for predictions that are not one for each row, or have a name that is
        taken.
        """
        missing = rows_without_prediction(predictions)
        if missing.any():
            self.without_prediction += int(missing.sum())
            self.first = self.first or _in_words(rows, int(missing.argmax()))
        self._waiting.append(_table(rows, predictions, missing, step))
        self.num_rows += len(rows.ids)
        waiting = sum(one.num_rows for one in self._waiting)
        if waiting >= _GROUP_ROWS or sum(one.nbytes for one in self._waiting) >= _GROUP_BYTES:
            self._write(file)

    def close(self, file: IO[bytes]) -> None:
        """Write what waits, and the file's end."""
        self._write(file)
        if self._writer:
            self._writer.close()

    def _write(self, file: IO[bytes]) -> None:
        if self._waiting:
            table = pa.concat_tables(self._waiting)
            self._waiting = []
            self._writer = self._writer or pq.ParquetWriter(file, table.schema)
            self._writer.write_table(table, row_group_size=table.num_rows)


def _in_words(rows: Rows, row: int) -> str:
    """A row, and its columns that are null."""
    nulls = [name for name, array in rows.columns.items() if is_null(array[row])]
    where = rows.ids[row] or next(iter(rows.columns.files))
    return f"{where}, where {', '.join(nulls)} is null" if nulls else where


def _table(
    rows: Rows, predictions: Mapping[str, Tensor], missing: npt.NDArray[np.bool_], step: int
) -> pa.Table:
    ids = rows.ids
    columns: dict[str, pa.Array] = {"id": pa.array(ids, pa.string())}
    for name in rows.kept.column_names:
        if name in (*RESERVED, *predictions):
            raise DataError(
                f"column {name!r} of the input cannot be stored beside the predictions, which have "
                "one of that name"
            )
        columns[name] = rows.kept[name]
    for name, tensor in predictions.items():
        if len(tensor) != len(ids):
            raise WorkloadError(
                f"predictions() gives a column {name!r} of {len(tensor)} rows for {len(ids)} "
                "samples: give one row for each"
            )
        array = _array(tensor)
        # No library reads nulls among lists of one length: there the NaN stay.
        if missing.any() and tensor.dim() == 1:
            array = pc.if_else(pa.array(~missing), array, None)
        columns[name] = array
    columns["model_step"] = pa.array([step] * len(ids), pa.int64())
    return pa.table(columns)


def _array(tensor: Tensor) -> pa.Array:
    """A column of numbers; of lists of them where the tensor has further dimensions."""
    tensor = tensor.detach().cpu()
    if tensor.dtype == torch.bfloat16:
        tensor = tensor.float()
    array = pa.array(tensor.contiguous().view(-1).numpy())
    for size in reversed(tensor.shape[1:]):
        array = pa.FixedSizeListArray.from_arrays(array, size)
    return array
