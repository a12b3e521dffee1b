"""Batch inference: rows scored by a checkpoint on the workers of a pool, stored as Parquet.

The rows are cut into batches of `eval_batch_size` and those into `num_shards` parts, so that
the predictions have the same bits on any number of workers.
"""

from __future__ import annotations

import sys
import tempfile
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from train_core.config import TrainConfig
from train_core.engine.cluster.pool import WorkerPool
from train_core.engine.data.batches import to_device
from train_core.engine.data.inputs import Input, open_input, read_input
from train_core.engine.data.raw_columns import prepared
from train_core.engine.data.recorded_workload import load_recorded
from train_core.engine.distributed.watchdog import watching
from train_core.engine.metrics.evaluation_loop import batches_of_shard
from train_core.engine.scoring.evaluate import load_model
from train_core.entry_points import SCORE_PART
from train_core.errors import WorkloadError, users_code
from train_core.policy.logins import hide_logins
from train_core.policy.samples.randomness import EVALUATE, derive_seed
from train_core.results import CheckpointSummary, PredictionsResult
from train_core.storage.objects.digests import new_digest
from train_core.storage.predictions import result_of
from train_core.storage.records.manifest import FileEntry, PredictionsManifest
from train_core.storage.records.names import PREDICTIONS, CheckpointName
from train_core.storage.records.verified_files import are_there
from train_core.storage.run_folder import Checkpoint, RunFolder
from train_core.storage.run_writer import ResultWriter
from train_core.text.log_lines import set_up_logging
from train_core.workload import Workload, seed_generators

_RESERVED = ("id", "model_step")


def infer(
    pool: WorkerPool,
    writer: ResultWriter,
    config: TrainConfig,
    summary: CheckpointSummary,
    source: str,
    max_batches: int = 0,
    model: str = "",
) -> PredictionsResult:
    """Score the rows at `source` (a split or a URL) with a checkpoint.

    A result that was committed earlier for the same checkpoint and input is reused. `max_batches`
    scores a part of the rows, for a dry run; 0: all of them. `model` is recorded: the registered
    version that was asked for. Raises FencedError, and commits
    nothing, if the writer's attempt was replaced.
    """
    folder = writer.folder
    checkpoint = folder.find(summary.name)
    found = open_input(source, load_recorded(folder, config), with_digests=True)
    key, manifest = _find(folder, checkpoint, found, model) or _run(
        pool, writer, config, checkpoint, found, max_batches, model
    )
    return result_of(folder, key, manifest, summary)


def _run(
    pool: WorkerPool,
    writer: ResultWriter,
    config: TrainConfig,
    checkpoint: Checkpoint,
    found: Input,
    max_batches: int,
    model: str,
) -> tuple[str, PredictionsManifest]:
    num_rows = found.num_rows
    if max_batches:
        num_rows = min(num_rows, max_batches * config.eval_batch_size)
    key = f"{PREDICTIONS}/{checkpoint.name}-{uuid.uuid4().hex[:8]}"
    written: list[tuple[FileEntry, int]] = pool.map(
        SCORE_PART,
        [
            (writer.folder.url, config, str(checkpoint.name), found, ranges, f"{key}/{name}")
            for name, ranges in _parts(num_rows, config)
        ],
    )
    manifest = PredictionsManifest(
        created_at=datetime.now(UTC).isoformat(),
        files=tuple(entry for entry, _ in written),
        checkpoint=str(checkpoint.name),
        checkpoint_digest=checkpoint.digest,
        step=checkpoint.step,
        input=found.describe(),
        num_rows=sum(rows for _, rows in written),
        rows=tuple(rows for _, rows in written),
        model=model,
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
    folder: RunFolder, checkpoint: Checkpoint, found: Input, model: str
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
) -> tuple[FileEntry, int]:
    """Score the batches of one output file and store it: its entry, and its rows."""
    set_up_logging(sys.stderr)
    folder = RunFolder.at(url)
    name = CheckpointName.parse(checkpoint)
    assert name is not None
    num_rows = 0
    with (
        users_code("infer", f"{key} from {hide_logins(found.source)}"),
        tempfile.TemporaryFile() as file,
        torch.inference_mode(),
    ):
        workload, model, device = load_model(url, config, checkpoint)
        writer = None
        # The watchdog covers scoring only: storing the file has time limits of its own.
        with watching(config.hang_timeout_s) as watchdog:
            for samples in ranges:
                watchdog.move()
                table = _scored(found, samples, workload, model, device, config, name.step)
                writer = writer or pq.ParquetWriter(file, table.schema)
                writer.write_table(table)
                num_rows += table.num_rows
        assert writer is not None, "a part has at least one batch"
        writer.close()
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
        return entry, num_rows


def _scored(
    found: Input,
    samples: range,
    workload: Workload[Any],
    model: nn.Module,
    device: torch.device,
    config: TrainConfig,
    step: int,
) -> pa.Table:
    """The predictions of a batch."""
    seed_generators(derive_seed(config.seed, EVALUATE, samples.start))
    ids, columns = read_input(found, workload, samples)
    batch = to_device(prepared(workload, columns, ids), device, channels_last=config.channels_last)
    with torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16"):
        outputs = workload.forward(model, batch)
    return _table(ids, workload.predictions(outputs), step)


def _table(ids: list[str], predictions: Any, step: int) -> pa.Table:
    columns: dict[str, pa.Array] = {"id": pa.array(ids, pa.string())}
    for name, tensor in predictions.items():
        if name in _RESERVED or len(tensor) != len(ids):
            raise WorkloadError(
                f"predictions() gives a column {name!r} of {len(tensor)} rows for {len(ids)} "
                f"samples: give one row for each, and not under {' or '.join(_RESERVED)}"
            )
        columns[name] = _array(tensor)
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
