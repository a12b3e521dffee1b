"""Two models compared on the same rows: the improvement, its confidence interval, the recalls.

The metric of any choice of rows is computed from what each row adds to the metric's states. Where
these are sums or lists, as of nearly all metrics of torchmetrics, that is the metric itself, and no
mean of the rows' own metrics.
"""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from train_core.errors import ConfigError
from train_core.policy.champion.gate_decision import Improvement
from train_core.policy.checkpoints.selection import Order
from train_core.quick_metrics import Metric, dim_zero_cat, dim_zero_sum
from train_core.results import McNemar
from train_core.scoring.row_sums import RowSums

_RESAMPLED_ROWS = 2**20
"""How many rows of resamples are in memory at once, of 8 bytes each, or else one resample."""
_TOLD_EVERY_S = 10.0
_log = logging.getLogger("train_core.driver")
_SAME = 1e-3
"""A metric of rows is that of their batches up to rounding: more apart, it is another one."""


@dataclass(frozen=True)
class RowScores:
    """What a model gives for the rows of some shards, in their order."""

    num_rows: int
    totals: tuple[dict[str, Any], ...]
    """The metric's states over each shard, as an evaluation measures them."""
    states: dict[str, npt.NDArray[Any] | RowSums]
    """What the rows add to each of the metric's states, to a list an entry a row; empty if
    `failure`."""
    predictions: npt.NDArray[Any]
    """The predicted class of each row; empty for a model that is no classifier."""
    targets: npt.NDArray[Any]
    failure: str = ""
    """Why the metric was not measured row by row."""


class RowMetric:
    """A metric of any choice of the rows.

    Raises ConfigError if what the rows add does not make up `total`, which an evaluation measured.
    """

    def __init__(self, name: str, metric: Metric, scores: RowScores, total: float) -> None:
        check_adds_up(name, metric)
        if scores.failure:
            raise ConfigError(scores.failure)
        self.num_rows = scores.num_rows
        self._metric = metric.to("cpu")
        # A call replaces all states. torchmetrics' own reset would be half of the call's time; it
        # is not needed if no earlier value is kept.
        self._metric.reset()
        self._metric.compute_with_cache = False
        self._has_own_reset = type(metric).reset is not Metric.reset
        reductions = metric._reductions  # noqa: SLF001 (torchmetrics has no public reader)
        states = {name: scores.states[name] for name in reductions}
        self._lists = {name: of for name, of in states.items() if not isinstance(of, RowSums)}
        self._sums = {name: of for name, of in states.items() if isinstance(of, RowSums)}
        found = self(np.arange(self.num_rows))
        if not math.isclose(found, total, rel_tol=_SAME, abs_tol=1e-9):
            raise ConfigError(
                f"{name} of the rows taken one by one is {found:.6g}, and {total:.6g} of them as "
                "batches"
            )

    def __call__(self, rows: npt.NDArray[np.int64]) -> float:
        """Its value over these rows, of which one may be there several times."""
        if self._has_own_reset:
            self._metric.reset()
        for name, entries in self._lists.items():
            setattr(self._metric, name, [torch.as_tensor(entries[rows])])
        counts = np.bincount(rows, minlength=self.num_rows).astype(np.float64)
        for name, sums in self._sums.items():
            setattr(self._metric, name, torch.as_tensor(sums.total(counts)))
        with warnings.catch_warnings():
            # torchmetrics does not count a state that was set as an update; and a resample may lack
            # a class.
            warnings.simplefilter("ignore")
            return float(self._metric.compute())

    def num_differing(self, other: RowMetric) -> int:
        """How many rows add something else to this metric than to that of another model."""
        if self._shapes() != other._shapes():
            # As with a class more: each row adds to other states.
            return self.num_rows
        differs = np.zeros(self.num_rows, bool)
        for name, sums in self._sums.items():
            differs |= sums.differs(other._sums[name])
        for name, one in self._lists.items():
            two = other._lists[name]
            same = one == two
            if one.dtype.kind == "f":
                same |= np.isnan(one) & np.isnan(two)
            differs |= ~same.reshape(self.num_rows, -1).all(axis=1)
        return int(differs.sum())

    def _shapes(self) -> dict[str, tuple[bool, tuple[int, ...]]]:
        """Of each state whether it is a sum, and the shape of what a row adds."""
        lists = {name: (False, of.shape[1:]) for name, of in self._lists.items()}
        return lists | {name: (True, of.like.shape) for name, of in self._sums.items()}


def check_adds_up(name: str, metric: Metric) -> None:
    """Raise ConfigError if no sum or list of what single rows add makes up the metric."""
    reductions = metric._reductions  # noqa: SLF001 (torchmetrics has no public reader)
    for state, reduction in reductions.items():
        if reduction not in (dim_zero_sum, dim_zero_cat):
            raise ConfigError(
                f"metric {name!r} cannot be compared row by row, as its state {state!r} is neither "
                "a sum nor a list over the samples: choose another gate_metric, or no gate"
            )
    if not reductions:
        raise ConfigError(
            f"metric {name!r} cannot be compared row by row, as it has no state of its own: choose "
            "another gate_metric, or no gate"
        )


def joined(parts: Sequence[RowScores | None]) -> RowScores:
    """The scores of all shards, in the order of the rows."""
    there = [part for part in parts if part is not None]
    failure = next((part.failure for part in there if part.failure), "")
    names = () if failure else there[0].states
    return RowScores(
        num_rows=sum(part.num_rows for part in there),
        totals=tuple(total for part in there for total in part.totals),
        states={name: joined_states([part.states[name] for part in there]) for name in names},
        predictions=np.concatenate([part.predictions for part in there]),
        targets=np.concatenate([part.targets for part in there]),
        failure=failure,
    )


def joined_states(parts: Sequence[Any]) -> npt.NDArray[Any] | RowSums:
    """What rows add to one state, of parts of the rows."""
    return RowSums.joined(parts) if isinstance(parts[0], RowSums) else np.concatenate(parts)


def rows_needed(confidence: float) -> int:
    """The fewest rows that show with this confidence that one of two models is better.

    If they are equal, all of n rows on which they differ speak for the same one with a probability
    of 2 / 2^n. A bootstrap of fewer rows promises too much.
    """
    return 1 + math.ceil(math.log2(1 / (1 - confidence)))


def improvement(
    champion: RowMetric,
    challenger: RowMetric,
    order: Order,
    *,
    confidence: float,
    seed: int,
    num_resamples: int,
) -> Improvement | None:
    """By how much the challenger is better, with a paired bootstrap's percentile interval.

    None if there are less than two rows, or if it is no number. Efron and Tibshirani, An
    Introduction to the Bootstrap (1993), chapter 13.
    """
    from scipy import stats

    sign = 1.0 if order == "max" else -1.0

    def difference(rows: npt.NDArray[np.int64]) -> float:
        return sign * (challenger(rows) - champion(rows))

    num_done, told_at = 0, time.monotonic()

    def differences(resamples: npt.NDArray[np.int64], axis: int) -> npt.NDArray[np.float64]:
        nonlocal num_done, told_at
        num_done += np.prod(resamples.shape[:-1], dtype=int)
        if time.monotonic() > told_at + _TOLD_EVERY_S:
            told_at = time.monotonic()
            _log.info("compared %d of %d resamples of the rows", num_done, num_resamples)
        return np.apply_along_axis(difference, axis, resamples)

    rows = np.arange(champion.num_rows)
    value = difference(rows)
    if len(rows) < 2 or not math.isfinite(value):
        return None
    found = stats.bootstrap(
        (rows,),
        differences,
        n_resamples=num_resamples,
        # All of them together would take as many times the memory of the rows.
        batch=max(1, _RESAMPLED_ROWS // len(rows)),
        confidence_level=confidence,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(seed),
    ).confidence_interval
    if not (math.isfinite(found.low) and math.isfinite(found.high)):
        return None
    # In exact numbers, 0.0 and never -0.0.
    return Improvement(
        value + 0.0,
        float(found.low) + 0.0,
        float(found.high) + 0.0,
        differing_rows=challenger.num_differing(champion),
        needed_rows=rows_needed(confidence),
    )


def mcnemar(champion: RowScores, challenger: RowScores) -> McNemar | None:
    """McNemar's exact test of two classifiers; None for models that are none.

    McNemar, Note on the sampling error of the difference between correlated proportions (1947).
    """
    from scipy import stats

    if not len(champion.predictions):
        return None
    before = champion.predictions == champion.targets
    now = challenger.predictions == challenger.targets
    only_now, only_before = int((now & ~before).sum()), int((before & ~now).sum())
    disagreeing = only_now + only_before
    p_value = float(stats.binomtest(only_now, disagreeing, 0.5).pvalue) if disagreeing else 1.0
    return McNemar(only_challenger_right=only_now, only_champion_right=only_before, p_value=p_value)


def recalls(scores: RowScores, class_names: Sequence[str]) -> dict[str, float | None]:
    """The recall of each class; None for one that no row has. Empty without predictions."""
    found: dict[str, float | None] = {}
    for number, name in enumerate(class_names if len(scores.predictions) else ()):
        of_class = scores.targets == number
        right = scores.predictions[of_class] == number
        found[name] = float(right.mean()) if of_class.any() else None
    return found


def is_aligned(champion: RowScores, challenger: RowScores) -> bool:
    """Whether both have as many rows, with the same targets."""
    return champion.num_rows == challenger.num_rows and np.array_equal(
        champion.targets, challenger.targets
    )
