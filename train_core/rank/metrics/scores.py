"""What a split's predictions were like, beyond its metrics: for the figures that people look at.

Of a classifier: how often it is right, by its confidence. Of a regressor: targets beside
predictions. Of a model with two classes: how many of each have which score. Of all: the samples
that are worst predicted. It is small whatever the split's size,
and the same whichever rank measures a shard.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor

from train_core.errors import WorkloadError
from train_core.quick_metrics import Metric, MulticlassConfusionMatrix
from train_core.workload import Batch, Workload, predicts

SCORES, CONFUSION = "\0scores", "\0confusion_matrix"
OF_PREDICTIONS = frozenset({SCORES, CONFUSION})
"""The names of `prediction_metrics`, which no metric of a workload has."""
NUM_BINS = 20
NUM_WORST = 16
MAX_PAIRS = 2000
NUM_SCORES = 500
_INDEX, _TARGET, _PREDICTION, _SCORE = range(4)


class WorstSample(BaseModel):
    """A sample, by its index in the split."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    index: int
    target: float
    prediction: float
    score: float
    """Of a classifier the probability of the true class, of a regressor the absolute error."""


class ConfidenceBin(BaseModel):
    """The samples that a classifier predicts with about this confidence."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    count: int
    correct: int
    confidence: float
    """The mean; 0 for no samples."""


class ScoreBin(BaseModel):
    """The samples of a model with two classes whose score lies in one of equally wide ranges."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    negatives: int
    """Samples of class 0."""
    positives: int
    """Samples of class 1."""


class Scores(BaseModel):
    """scores.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    kind: Literal["classifier", "regressor"]
    bins: tuple[ConfidenceBin, ...] = ()
    """Of a classifier, equally wide, from confidence 0 to 1."""
    pairs: tuple[tuple[float, float], ...] = ()
    """Of a regressor: the target and the prediction of samples at equal distances."""
    score_bins: tuple[ScoreBin, ...] = ()
    """Of two classes, from score 0 to 1; empty: no column has a score of class 1."""
    worst: tuple[WorstSample, ...] = ()
    """The worst first."""


class ScoreStates(Metric):
    """Collects `Scores` over the batches of a split of `num_samples`, of which it keeps a part."""

    full_state_update = False
    bins: Tensor
    pairs: list[Tensor]
    worst: list[Tensor]
    score_bins: Tensor
    num_odd: Tensor
    highest_of_0: Tensor
    lowest_of_1: Tensor

    def __init__(self, num_samples: int, *, is_classifier: bool) -> None:
        super().__init__()
        self.is_classifier = is_classifier
        self._every = -(-num_samples // MAX_PAIRS)
        self.add_state("bins", torch.zeros(NUM_BINS, 3, dtype=torch.float64), "sum")
        self.add_state("pairs", [], "cat")
        self.add_state("worst", [], "cat")
        # Samples of class 0 and of class 1 by their scores; and how many rows are of neither.
        self.add_state("score_bins", torch.zeros(NUM_SCORES, 2, dtype=torch.int64), "sum")
        self.add_state("num_odd", torch.zeros((), dtype=torch.int64), "sum")
        # Where 0 is predicted, and where 1 is: a score of the predicted class is none of class 1.
        self.add_state("highest_of_0", torch.tensor(-torch.inf), "max")
        self.add_state("lowest_of_1", torch.tensor(torch.inf), "min")

    def update(self, samples: range, predicted: Mapping[str, Tensor], batch: Batch) -> None:
        """Add the samples of a batch; nothing, where the workload's outputs are of another kind."""
        self._add_scores(predicted, batch)
        found = self._rows(samples, predicted, batch)
        if found is None:
            return
        rows, confidence = found
        if confidence is None:
            chosen = rows[:, _INDEX] % self._every == 0
            self.pairs.append(torch.from_numpy(rows[chosen][:, [_TARGET, _PREDICTION]]))
        else:
            is_right = rows[:, _TARGET] == rows[:, _PREDICTION]
            places = np.minimum((confidence * NUM_BINS).astype(np.int64), NUM_BINS - 1)
            columns = (np.ones(len(rows)), is_right, confidence)
            counts = [np.bincount(places, column, NUM_BINS) for column in columns]
            self.bins += torch.from_numpy(np.stack(counts, axis=1)).to(self.bins.device)
        so_far = [one.cpu().numpy() for one in self.worst]
        self.worst = [torch.from_numpy(self._worst_of(np.concatenate([*so_far, rows])))]

    def compute(self) -> Scores | None:
        """As `scores`."""
        return self.scores()

    def scores(self) -> Scores | None:
        """What was collected, or merged from several; None if nothing was."""
        worst = _joined(self.worst)
        if not len(worst):
            return None
        is_binary = not self.num_odd and bool(self.highest_of_0 <= self.lowest_of_1)
        score_bins = self.score_bins.tolist() if is_binary else []
        return Scores(
            kind="classifier" if self.is_classifier else "regressor",
            bins=tuple(map(_bin, self.bins.cpu().numpy())) if self.is_classifier else (),
            score_bins=tuple(ScoreBin(negatives=no, positives=yes) for no, yes in score_bins),
            pairs=tuple((float(a), float(b)) for a, b in _joined(self.pairs)),
            worst=tuple(
                WorstSample(index=int(index), target=target, prediction=prediction, score=score)
                for index, target, prediction, score in self._worst_of(worst).tolist()
            ),
        )

    def _rows(
        self, samples: range, predicted: Mapping[str, Tensor], batch: Batch
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64] | None] | None:
        """Index, target, prediction and score of each sample, and its confidence if it has one."""
        targets, predictions = batch.get("targets"), predicted.get("prediction")
        if targets is None or predictions is None:
            return None
        shape = (len(samples),)
        target, prediction = _flat(targets), _flat(predictions)
        if target.shape != shape or prediction.shape != shape:
            return None
        confidence = None
        if self.is_classifier:
            probabilities = predicted.get("probabilities")
            if probabilities is None or probabilities.ndim != 2:
                return None
            shares = _numbers(probabilities)
            classes = target.astype(np.int64)
            if classes.min() < 0 or classes.max() >= shares.shape[1]:
                return None
            score = shares[np.arange(len(samples)), classes]
            confidence = shares.max(axis=1)
        else:
            score = np.abs(prediction - target)
        rows = np.stack([np.asarray(samples, np.float64), target, prediction, score], axis=1)
        good = np.isfinite(rows).all(axis=1)
        return rows[good], confidence if confidence is None else confidence[good]

    def _add_scores(self, predicted: Mapping[str, Tensor], batch: Batch) -> None:
        """Count the scores of class 1 of each class."""
        targets, scores = batch.get("targets"), _scores_of_class_1(predicted)
        target = None if targets is None else _flat(targets)
        if target is None or scores is None or target.shape != scores.shape:
            self.num_odd += 1
            return
        predictions = predicted.get("prediction")
        if predictions is not None and not predictions.is_floating_point():
            classes = _flat(predictions)
            if classes.shape != scores.shape:
                self.num_odd += 1
                return
            of_0, of_1 = (scores[classes == one] for one in (0, 1))
            device = self.num_odd.device
            highest = torch.tensor(of_0.max(initial=-np.inf), dtype=torch.float32, device=device)
            lowest = torch.tensor(of_1.min(initial=np.inf), dtype=torch.float32, device=device)
            self.highest_of_0 = torch.maximum(self.highest_of_0, highest)
            self.lowest_of_1 = torch.minimum(self.lowest_of_1, lowest)
        is_good = np.isin(target, (0, 1)) & (scores >= 0) & (scores <= 1)
        self.num_odd += int(len(target) - is_good.sum())
        target, scores = target[is_good], scores[is_good]
        places = np.minimum((scores * NUM_SCORES).astype(np.int64), NUM_SCORES - 1)
        counts = [np.bincount(places[target == one], minlength=NUM_SCORES) for one in (0, 1)]
        self.score_bins += torch.from_numpy(np.stack(counts, axis=1)).to(self.score_bins.device)

    def _worst_of(self, rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """The worst samples, the worst first; of equal ones the first of the split."""
        badness = rows[:, _SCORE] if self.is_classifier else -rows[:, _SCORE]
        return rows[np.lexsort((rows[:, _INDEX], badness))[:NUM_WORST]]


def prediction_metrics(workload: Workload[Any], num_samples: int) -> dict[str, Metric]:
    """What an evaluation measures beside a workload's own metrics, SCORES and maybe CONFUSION.

    It measures none where the workload does not say what it predicts.
    """
    if not predicts(workload):
        return {}
    num_classes = len(workload.class_names)
    scores = ScoreStates(num_samples, is_classifier=bool(num_classes))
    if not num_classes:
        return {SCORES: scores}
    return {SCORES: scores, CONFUSION: MulticlassConfusionMatrix(num_classes)}


def update_prediction_metric(
    name: str, metric: Metric, samples: range, predicted: Mapping[str, Tensor], batch: Batch
) -> None:
    """Add the samples of a batch to the metric of that name of `prediction_metrics`.

    Raises WorkloadError for targets that are no numbers of classes.
    """
    if name == SCORES:
        metric.update(samples, predicted, batch)
        return
    targets = batch["targets"]
    # torchmetrics cuts off what is behind the point.
    if targets.is_floating_point() and bool((targets != targets.round()).any()):
        raise WorkloadError(
            "the targets of a classifier, which has class_names, are no numbers of classes"
        )
    metric.update(predicted["prediction"], targets)


def _bin(row: npt.NDArray[np.float64]) -> ConfidenceBin:
    count, correct, confidence = row.tolist()
    mean = confidence / count if count else 0.0
    return ConfidenceBin(count=int(count), correct=int(correct), confidence=mean)


def _scores_of_class_1(predicted: Mapping[str, Tensor]) -> npt.NDArray[np.float64] | None:
    """The first column with a number of each row, or with one of each of two classes.

    One whose name says what it is comes before the others.
    """
    columns = sorted(predicted, key=lambda name: not re.search("prob|score", name.lower()))
    for name in columns:
        column = predicted[name]
        if not column.is_floating_point():
            continue
        if column.ndim == 2 and column.shape[1] == 2:
            return _numbers(column)[:, 1]
        flat = _flat(column)
        if flat.ndim == 1:
            return flat
    return None


def _joined(tensors: list[Tensor]) -> npt.NDArray[np.float64]:
    arrays = [tensor.cpu().numpy() for tensor in tensors]
    return np.concatenate(arrays) if arrays else np.empty((0, 4))


def _flat(tensor: Tensor) -> npt.NDArray[np.float64]:
    """The numbers; a last dimension of one value is none."""
    numbers = _numbers(tensor)
    return numbers[:, 0] if numbers.ndim == 2 and numbers.shape[1] == 1 else numbers


def _numbers(tensor: Tensor) -> npt.NDArray[np.float64]:
    return tensor.detach().to("cpu", torch.float64).numpy()
