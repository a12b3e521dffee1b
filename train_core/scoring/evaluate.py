"""Evaluation: checkpoints measured on a split, shard by shard, by the workers of a pool.

It uses the code, the batches and the order of the training's own validation, so the same checkpoint
on the same split gives the same bits: `rank/metrics/evaluation_loop.py`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import uuid
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, assert_never

import numpy as np
import torch
from torch import nn

from train_core import predictors
from train_core.cluster.pool import WorkerPool
from train_core.config import FunctionTraining, TrainConfig, WorkloadTraining
from train_core.datasets.few_samples import FewSamples
from train_core.datasets.protocols import Dataset, Split
from train_core.entry_points import MEASURE_SHARD
from train_core.errors import CheckpointError, users_code
from train_core.loading import load_function
from train_core.rank.checkpoint.reader import read_model
from train_core.rank.checkpoint.verified_folder import verified_folder
from train_core.rank.data.batches import model_to_device
from train_core.rank.data.recorded_workload import load_recorded
from train_core.rank.distributed.group import Group, use_deterministic_algorithms
from train_core.rank.distributed.watchdog import watching
from train_core.rank.metrics.evaluation_loop import (
    MetricStates,
    check_split,
    measure_shard,
    merge,
    merge_states,
    split_metrics,
)
from train_core.rank.metrics.scores import CONFUSION, ScoreStates, prediction_metrics
from train_core.results import CheckpointSummary, EvaluationResult
from train_core.storage.records.journal import finite
from train_core.storage.records.manifest import EvaluationManifest
from train_core.storage.records.names import CONFUSION_MATRIX_JSON, EVALUATIONS, SCORES_JSON
from train_core.storage.records.verified_files import are_there
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.run_writer import ResultWriter, quarantine
from train_core.text.log_lines import set_up_logging
from train_core.workload import Workload, indexed

METRICS_JSON = "metrics.json"


def evaluate(
    pool: WorkerPool,
    writer: ResultWriter,
    config: TrainConfig,
    checkpoints: list[CheckpointSummary],
    split: Split,
    max_batches: int = 0,
) -> list[EvaluationResult]:
    """Measure the checkpoints on a split. An earlier result of the same is reused.

    The shards of all checkpoints queue together, and a result is committed once its last shard is
    measured. `max_batches` measures a part of the split, for a dry run; 0: all of it. Raises
    FencedError, and commits nothing more, if the writer's attempt was replaced.
    """
    folder = writer.folder
    workload = load_recorded(folder, config)
    committed_ones = [folder.find(summary.name) for summary in checkpoints]
    results = {one.name: _find(folder, one, split, max_batches) for one in committed_ones}
    missing = [checkpoint for checkpoint in committed_ones if results[checkpoint.name] is None]
    measured: list[dict[int, tuple[int, MetricStates]]] = [{} for _ in missing]

    failures: list[Exception] = []

    def commit_if_complete(call: int, of_shard: tuple[int, MetricStates]) -> None:
        place, shard = divmod(call, config.shards)
        measured[place][shard] = of_shard
        if len(measured[place]) < config.shards:
            return
        of_shards = [measured[place].pop(number) for number in range(config.shards)]
        try:
            found = _commit(writer, workload, missing[place], split, max_batches, of_shards)
        except Exception as error:  # noqa: BLE001 (raised below: others may use the workers)
            failures.append(error)
        else:
            results[missing[place].name] = found

    calls = [
        (folder.url, config, str(checkpoint.name), split, shard, max_batches)
        for checkpoint in missing
        for shard in range(config.shards)
    ]
    if calls:
        pool.map(MEASURE_SHARD, calls, commit_if_complete)
    if failures:
        raise failures[0]
    found = []
    for summary, checkpoint in zip(checkpoints, committed_ones, strict=True):
        committed = results[checkpoint.name]
        assert committed is not None, "all that were missing are committed"
        key, manifest = committed
        found.append(
            EvaluationResult(
                checkpoint=summary,
                split=split,
                uri=folder.store.uri(key),
                num_samples=manifest.num_samples,
                metrics=manifest.metrics,
            )
        )
    return found


def _find(
    folder: RunFolder, checkpoint: Commit, split: str, max_batches: int
) -> tuple[str, EvaluationManifest] | None:
    """An evaluation of the same checkpoint that was committed earlier."""
    asked = (split, checkpoint.digest, max_batches)
    for key, manifest in folder.results(f"{EVALUATIONS}/{checkpoint.name}", EvaluationManifest):
        found = (manifest.split, manifest.checkpoint_digest, manifest.max_batches)
        if found == asked and are_there(folder.store, key, manifest.files):
            return key, manifest
    return None


def _commit(
    writer: ResultWriter,
    workload: Workload[Any],
    checkpoint: Commit,
    split: str,
    max_batches: int,
    measured: list[tuple[int, MetricStates]],
) -> tuple[str, EvaluationManifest]:
    """Merge the shards' metrics, store them, and commit."""
    states = [shard for _, shard in measured]
    values = finite(merge(split_metrics(workload), states))
    files: dict[str, Any] = {METRICS_JSON: values}
    num_samples = sum(count for count, _ in measured)
    for name, metric in prediction_metrics(workload, num_samples).items():
        merged = merge_states(metric, [shard[name] for shard in states])
        if name == CONFUSION:
            files[CONFUSION_MATRIX_JSON] = {
                "labels": list(workload.class_names),
                "counts": torch.as_tensor(merged.metric_state["confmat"]).tolist(),
            }
        elif isinstance(merged, ScoreStates) and (scores := merged.scores()):
            files[SCORES_JSON] = scores.model_dump(mode="json")
    key = f"{EVALUATIONS}/{checkpoint.name}/{split}-{uuid.uuid4().hex[:8]}"
    entries = []
    for name, content in files.items():
        data = (json.dumps(content, indent=1) + "\n").encode()
        entries.append(writer.write_result_file(f"{key}/{name}", data))
    manifest = EvaluationManifest(
        created_at=datetime.now(UTC).isoformat(),
        files=tuple(entries),
        checkpoint=str(checkpoint.name),
        checkpoint_digest=checkpoint.digest,
        split=split,
        num_samples=num_samples,
        max_batches=max_batches,
        metrics=values,
    )
    writer.commit_result(key, manifest)
    return key, manifest


def measure_one_shard(
    url: str, config: TrainConfig, checkpoint: str, split: Split, shard: int, max_batches: int
) -> tuple[int, MetricStates]:
    """One shard of one evaluation: how many samples, and the metrics' states."""
    set_up_logging(sys.stderr)
    with users_code("evaluate", f"shard {shard} of the {split} split"):
        workload, model, device = load_model(url, config, checkpoint)
        dataset: Dataset = dataset_of(url, config, split)
        if max_batches:
            first = min(max_batches * config.eval_batch_size, len(dataset))
            dataset = FewSamples(dataset, np.arange(first))
        metrics = split_metrics(workload) | prediction_metrics(workload, len(dataset))
        with watching(config.hang_timeout_s) as watchdog:
            states = measure_shard(
                workload, model, dataset, config, shard, device, metrics, on_batch=watchdog.move
            )
        return (len(dataset) if shard == 0 else 0), states


@lru_cache(maxsize=2)
def load_model(
    url: str, config: TrainConfig, checkpoint: str
) -> tuple[Workload[Any], nn.Module, torch.device]:
    """A checkpoint's verified model in evaluation mode; kept for the worker's next task."""
    torch.set_num_threads(config.threads_per_worker)
    folder = RunFolder.at(url)
    workload = load_recorded(folder, config)
    device = Group.current(uses_gpu=config.uses_gpu).device
    use_deterministic_algorithms(config, device, folder.record().step_rules)
    found = folder.find(checkpoint)
    try:
        model = _model_of(folder, found, config, workload)
    except CheckpointError as error:
        quarantine(folder, found.name, str(error))
        raise CheckpointError(
            f"checkpoint {checkpoint} is quarantined: {error}. Start the same run again: it goes "
            "on from what is good"
        ) from error
    model = model_to_device(model, device, channels_last=config.channels_last)
    return workload, model.eval(), device


def _model_of(
    folder: RunFolder, checkpoint: Commit, config: TrainConfig, workload: Workload[Any]
) -> nn.Module:
    """The workload's model with the checkpoint's weights; of a function what its predictor makes.

    Raises CheckpointError if the checkpoint is damaged.
    """
    match config.trainable:
        case FunctionTraining(predictor=name, trust_pickle=is_trusted):
            with tempfile.TemporaryDirectory(prefix="evertrain-") as cache:
                reported = verified_folder(folder, checkpoint, Path(cache))
                return predictors.apply(load_function(name), reported, is_trusted=is_trusted)
        case WorkloadTraining():
            model = workload.model()
            read_model(folder.store, checkpoint).give(model)
            return model
        case other:
            assert_never(other)


@lru_cache(maxsize=2)
def dataset_of(url: str, config: TrainConfig, split: Split) -> Dataset:
    """A split as the run at `url` recorded it; kept for the worker's next task."""
    dataset = indexed(load_recorded(RunFolder.at(url), config), split)
    check_split(dataset, split)
    return dataset
