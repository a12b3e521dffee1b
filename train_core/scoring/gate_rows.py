"""What a gate measures of one model, in a worker: each row's part of a metric, and its cost."""

from __future__ import annotations

import logging
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from train_core.config import TrainConfig
from train_core.errors import users_code
from train_core.policy.metric_names import LOSS
from train_core.quick_metrics import Metric, dim_zero_cat, dim_zero_sum
from train_core.rank.distributed.watchdog import watching
from train_core.rank.metrics.evaluation_loop import (
    add_loss,
    batches_of_shard,
    eval_batches,
    split_metrics,
    state_of,
)
from train_core.rank.metrics.forward import autocast, forward, predictions_of
from train_core.scoring.comparison import RowScores, joined_states
from train_core.scoring.evaluate import dataset_of, load_model
from train_core.scoring.row_sums import BLOCK_VALUES, RowSums
from train_core.text.log_lines import set_up_logging
from train_core.workload import Batch, Workload, predicts, update_metric

_TIMED_ROWS = 50
_TOLD_EVERY_S = 10.0
_log = logging.getLogger(__name__)
_TIMED_BATCHES = 10


@dataclass(frozen=True)
class Model:
    """A committed checkpoint as one of two that are compared."""

    url: str
    """Of its run."""
    config: TrainConfig
    checkpoint: str


@dataclass(frozen=True)
class Rows:
    """The rows on which both are compared: a split as the challenger's run recorded it."""

    url: str
    config: TrainConfig
    split: str
    metric: str
    """Its short name, such as `accuracy`."""


def score_rows(model: Model, rows: Rows, shard: int) -> RowScores | None:
    """The scores of one shard of the rows; None if it has none.

    Each model is used with the settings and the preprocessing of its own run.
    """
    set_up_logging(sys.stderr)
    with users_code("gate", f"shard {shard} of the {rows.split} split"), torch.no_grad():
        workload, module, device = load_model(model.url, model.config, model.checkpoint)
        shard_metric = split_metrics(workload)[rows.metric].to(device)
        row_metric = split_metrics(workload)[rows.metric].to(device)
        scored = RowScoring(rows.metric)
        with watching(rows.config.hang_timeout_s) as watchdog:
            told_at = time.monotonic()
            for batch in _batches(workload, rows, shard, device):
                watchdog.move()
                if time.monotonic() > told_at + _TOLD_EVERY_S:
                    told_at = time.monotonic()
                    _log.info("gate: %d rows of shard %d are scored", scored.num_rows, shard)
                outputs, loss = forward(workload, module, batch, model.config)
                if rows.metric == LOSS:
                    add_loss(shard_metric, workload, loss, batch)
                else:
                    update_metric(workload, rows.metric, shard_metric, outputs, batch)
                with autocast(device, model.config):
                    scored.add(workload, row_metric, outputs, batch)
        return scored.result(row_metric, state_of(shard_metric)) if scored.num_rows else None


def measure_cost(model: Model, rows: Rows) -> tuple[float, float, int]:
    """Milliseconds for one row and for a batch, each the median of several, and bytes of weights.

    The first call of each size is not counted.
    """
    set_up_logging(sys.stderr)
    with users_code("gate", "the latency of the model"), torch.no_grad():
        workload, module, device = load_model(model.url, model.config, model.checkpoint)
        batch = next(_batches(workload, rows, 0, device))
        one = pytree.tree_map_only(Tensor, lambda tensor: tensor[:1], batch)

        def run(what: Batch) -> Callable[[], Any]:
            return lambda: forward(workload, module, what, model.config)

        row_ms = _median_ms(run(one), _TIMED_ROWS, device)
        batch_ms = _median_ms(run(batch), _TIMED_BATCHES, device)
        return row_ms, batch_ms, _size_bytes(module)


class RowScoring:
    """Collects the scores of rows, which come batch by batch."""

    def __init__(self, name: str) -> None:
        self.num_rows = 0
        self._name = name
        self._blocks: dict[str, _Block] = {}
        """Of each state what the newest rows have added, one after the other."""
        self._parts: dict[str, list[npt.NDArray[Any] | RowSums]] = {}
        """Of each state what the rows before them have added."""
        self._columns: list[tuple[npt.NDArray[Any], npt.NDArray[Any]]] = []
        self._failure = ""

    def add(self, workload: Workload[Any], metric: Metric, outputs: Any, batch: Batch) -> None:
        """Add the rows of a batch. `metric` is used for each of them alone."""
        self.num_rows += _num_rows(batch)
        if workload.class_names and predicts(workload):
            predicted = predictions_of(workload, outputs)["prediction"]
            self._columns.append((predicted.cpu().numpy(), batch["targets"].cpu().numpy()))
        if self._failure:
            return
        try:
            for row_outputs, row in _rows_of(outputs, batch):
                metric.reset()
                if self._name == LOSS:
                    add_loss(metric, workload, workload.loss(row_outputs, row), row)
                else:
                    update_metric(workload, self._name, metric, row_outputs, row)
                for state, value in state_of(metric).items():
                    entry = _entry(value)
                    if state not in self._blocks:
                        self._blocks[state] = _Block(entry)
                    self._blocks[state].add(entry)
                    if self._blocks[state].is_full:
                        self._pack(state, metric)
        except Exception as error:  # noqa: BLE001 (whatever a workload raises that needs a whole batch)
            self._failure = f"{self._name} of a single row: {type(error).__name__}: {error}"

    def result(self, metric: Metric, totals: dict[str, Any]) -> RowScores:
        """All of them, beside what the metric is over the whole shard."""
        states: dict[str, npt.NDArray[Any] | RowSums] = {}
        failure = self._failure
        for name in list(self._blocks):
            self._pack(name, metric)
            parts = self._parts.get(name, [])
            if parts and sum(map(len, parts)) == self.num_rows:
                states[name] = joined_states(parts)
            elif not failure:
                failure = f"a row does not always add one entry to the metric's state {name!r}"
        predictions, targets = zip(*self._columns, strict=True) if self._columns else ((), ())
        return RowScores(
            num_rows=self.num_rows,
            totals=(totals,),
            states={} if failure else states,
            predictions=np.concatenate(predictions) if predictions else _NONE,
            targets=np.concatenate(targets) if targets else _NONE,
            failure=failure,
        )

    def _pack(self, state: str, metric: Metric) -> None:
        """Keep the newest entries of a state in little memory."""
        found = self._blocks.pop(state).entries()
        is_sum = metric._reductions[state] is dim_zero_sum  # noqa: SLF001 (no public reader)
        self._parts.setdefault(state, []).append(RowSums.of(found) if is_sum else found)


class _Block:
    """Entries of one shape in one array.

    Small arrays between the large ones that a metric makes and frees for each row would leave holes
    in the memory which the next large one does not fit into: gigabytes of a thousand classes.
    """

    def __init__(self, first: npt.NDArray[Any]) -> None:
        num_rows = max(1, BLOCK_VALUES // max(1, math.prod(first.shape[1:])))
        self._values = np.empty((num_rows, *first.shape[1:]), first.dtype)
        self._size = 0

    @property
    def is_full(self) -> bool:
        return self._size == len(self._values)

    def add(self, entry: npt.NDArray[Any]) -> None:
        """Add what a row has added, if it is one entry of the first one's shape."""
        if entry.shape != (1, *self._values.shape[1:]):
            return
        if entry.dtype != self._values.dtype:
            self._values = self._values.astype(np.result_type(entry, self._values))
        self._values[self._size] = entry[0]
        self._size += 1

    def entries(self) -> npt.NDArray[Any]:
        """The entries that were added, without the memory for more."""
        return self._values[: self._size].copy()


_NONE = np.empty(0, dtype=np.int64)


def _entry(state: Any) -> npt.NDArray[Any]:
    """What one update has made of a metric's state, as an array of one entry."""
    if isinstance(state, list) and not state:
        return _NONE
    entry = dim_zero_cat(state) if isinstance(state, list) else state[None]
    # NumPy has no such numbers.
    return np.asarray(entry.float() if entry.dtype == torch.bfloat16 else entry)


def _batches(
    workload: Workload[Any], rows: Rows, shard: int, device: torch.device
) -> Iterator[Batch]:
    """The batches of one shard, which are those of the challenger's evaluation."""
    dataset = dataset_of(rows.url, rows.config, rows.split)
    config = rows.config
    ranges = batches_of_shard(len(dataset), config.eval_batch_size, config.shards, shard)
    return eval_batches(workload, dataset, ranges, config, device)


def _num_rows(batch: Batch) -> int:
    return len(next(iter(batch.values())))


def _rows_of(outputs: Any, batch: Batch) -> Iterator[tuple[Any, Batch]]:
    """Outputs and batch, row by row; each is a batch of one."""
    size = _num_rows(batch)
    for row in range(size):

        def cut(tensor: Tensor, row: int = row) -> Tensor:
            # What is not of the batch, as a temperature beside the scores, is of every row.
            return tensor[row : row + 1] if tensor.ndim and len(tensor) == size else tensor

        yield tuple(pytree.tree_map_only(Tensor, cut, both) for both in (outputs, batch))


def _median_ms(run: Callable[[], Any], times: int, device: torch.device) -> float:
    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    run()
    measured = []
    for _ in range(times):
        wait()
        begin = time.perf_counter()
        run()
        wait()
        measured.append(time.perf_counter() - begin)
    return 1000 * statistics.median(measured)


def _size_bytes(module: nn.Module) -> int:
    return sum(tensor.nbytes for tensor in module.state_dict().values())
