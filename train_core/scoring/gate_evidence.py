"""The evidence of a gate: a challenger and the champion, measured on the same rows and pool."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace

from train_core.cluster.pool import WorkerPool
from train_core.config import TrainConfig
from train_core.config.worker_options import WorkerOptions
from train_core.entry_points import MEASURE_COST, SCORE_ROWS
from train_core.errors import CheckpointError, ConfigError, UserCodeError
from train_core.policy.champion.gate_decision import Evidence, Score
from train_core.policy.champion.gate_options import GateOptions
from train_core.policy.checkpoints.selection import Order
from train_core.policy.metric_names import TEST
from train_core.quick_metrics import Metric
from train_core.rank.data.recorded_workload import load_recorded
from train_core.rank.metrics.evaluation_loop import merge, split_metrics
from train_core.results import ChampionEntry, Comparison, ModelVersion
from train_core.scoring.comparison import (
    RowMetric,
    RowScores,
    improvement,
    is_aligned,
    joined,
    mcnemar,
    recalls,
)
from train_core.scoring.gate_metric import metric_of
from train_core.scoring.gate_rows import Model, Rows
from train_core.storage.records.journal import finite
from train_core.storage.run_folder import RunFolder

NUM_RESAMPLES = 2000
"""Of the rows, by which the gate finds the interval of an improvement."""
_log = logging.getLogger("train_core.driver")


@dataclass(frozen=True)
class Measured:
    """What a gate has measured."""

    metric: str
    order: Order
    comparison: Comparison
    evidence: Evidence


def measure(
    pool: WorkerPool,
    folder: RunFolder,
    config: TrainConfig,
    options: GateOptions,
    challenger: ModelVersion,
    champion: ChampionEntry | None,
) -> Measured:
    """Score both on the test split of the challenger's run, one after the other.

    What cannot be compared with the champion is part of the evidence, and no error.
    """
    workload = load_recorded(folder, config)
    name, order = metric_of(config, options, list(split_metrics(workload)))
    rows, classes = Rows(folder.url, config, TEST, name), workload.class_names

    def metric() -> Metric:
        return split_metrics(workload)[name]

    new = _Scored.of(pool, Model(folder.url, config, challenger.checkpoint), rows, metric())
    comparison = Comparison(
        split=TEST,
        num_rows=new.rows.num_rows,
        data_digest=str(folder.record().datasets.get(TEST, {}).get("digest") or ""),
        confidence=options.gate_confidence,
        num_resamples=0,
        seed=config.seed,
    )
    evidence = Evidence(challenger=new.score(classes))
    if champion is None:
        return Measured(name, order, comparison, evidence)
    was_chosen_on = (champion.num_rows, champion.data_digest)
    is_other = was_chosen_on != (comparison.num_rows, comparison.data_digest)
    evidence = replace(evidence, has_changed_data=is_other)
    try:
        old = _Scored.of(pool, _model_of(folder, config, champion.version), rows, metric())
        before, now = _row_metrics(name, old, new, metric(), metric())
    except (ConfigError, CheckpointError, UserCodeError, FileNotFoundError) as error:
        why = str(error).partition("\n")[0]
        _log.warning("%s and the champion cannot be compared: %s", challenger.address, why)
        return Measured(name, order, comparison, replace(evidence, failure=why))
    found = improvement(
        before,
        now,
        order,
        confidence=options.gate_confidence,
        seed=config.seed,
        num_resamples=NUM_RESAMPLES,
    )
    comparison = comparison.model_copy(
        update={"num_resamples": NUM_RESAMPLES, "mcnemar": mcnemar(old.rows, new.rows)}
    )
    evidence = replace(evidence, champion=old.score(classes), improvement=found)
    return Measured(name, order, comparison, evidence)


def _model_of(folder: RunFolder, config: TrainConfig, version: ModelVersion) -> Model:
    """The champion with its own run's settings, on the workers that are there.

    Raises FileNotFoundError if its run or checkpoint is gone, CheckpointError if another one is
    there.
    """
    other = RunFolder(folder.storage, version.run)
    checkpoint = other.find(version.checkpoint)
    if checkpoint.digest != version.checkpoint_digest:
        raise CheckpointError(f"{other.store.uri(checkpoint.key)} is not what was registered")
    workers = {name: getattr(config, name) for name in WorkerOptions.model_fields}
    recorded = other.newest_request().config.model_copy(update=workers)
    return Model(other.url, recorded, version.checkpoint)


def _row_metrics(
    name: str, old: _Scored, new: _Scored, *metrics: Metric
) -> tuple[RowMetric, RowMetric]:
    """The metric of champion and challenger over any choice of the rows.

    Raises ConfigError if they cannot be compared row by row.
    """
    if not is_aligned(old.rows, new.rows):
        raise ConfigError("the champion's preprocessing gives other rows or other targets")
    if old.score(()).metric is None:
        raise ConfigError(f"{name} of the champion is not finite")
    before, now = (
        RowMetric(name, metric, scored.rows, scored.metric)
        for metric, scored in zip(metrics, (old, new), strict=True)
    )
    return before, now


@dataclass(frozen=True)
class _Scored:
    """One model, measured on all rows."""

    rows: RowScores
    metric: float
    """Over all rows, with the bits of an evaluation."""
    row_ms: float
    batch_ms: float
    size_bytes: int

    @classmethod
    def of(cls, pool: WorkerPool, model: Model, rows: Rows, metric: Metric) -> _Scored:
        shards = range(rows.config.shards)
        scores = joined(pool.map(SCORE_ROWS, [(model, rows, shard) for shard in shards]))
        # Alone, so that no other worker takes its memory's time.
        (cost,) = pool.map(MEASURE_COST, [(model, rows)])
        totals = [{rows.metric: total} for total in scores.totals]
        return cls(scores, merge({rows.metric: metric}, totals)[rows.metric], *cost)

    def score(self, class_names: Sequence[str]) -> Score:
        return Score(
            metric=finite({"": self.metric})[""],
            recalls=recalls(self.rows, class_names),
            row_ms=round(self.row_ms, 4),
            batch_ms=round(self.batch_ms, 4),
            size_bytes=self.size_bytes,
        )
