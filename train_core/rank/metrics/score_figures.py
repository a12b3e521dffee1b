"""Figures of what a split's predictions were like: per class, by confidence, residuals, the worst.

Each has a white background of its own, so that it can be read on a light and on a dark page.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from train_core.rank.metrics.figures import BAD, GOOD, GREY, new_figure
from train_core.rank.metrics.scores import (
    NUM_BINS,
    NUM_WORST,
    Scores,
    WorstSample,
)

_MAX_BARS = 60
_COLUMNS = 4
_BINS_OF_A_POINT = 50
_MIN_SIDE = 4
"""An image has this many pixels on each side at least; a smaller array is a table."""
_CHANNELS = (1, 3, 4)


@dataclass(frozen=True)
class ClassScore:
    """How well one class is told from the others."""

    name: str
    precision: float
    recall: float
    f1: float
    samples: int


def class_scores(counts: Sequence[Sequence[int]], names: Sequence[str]) -> list[ClassScore]:
    """The scores of each class, from a confusion matrix with true classes as rows."""
    table = np.asarray(counts, np.float64)
    right, true, predicted = table.diagonal(), table.sum(axis=1), table.sum(axis=0)
    found = []
    for name, hits, samples, called in zip(names, right, true, predicted, strict=True):
        precision = hits / called if called else 0.0
        recall = hits / samples if samples else 0.0
        both = precision + recall
        f1 = 2 * precision * recall / both if both else 0.0
        found.append(ClassScore(name, precision, recall, f1, int(samples)))
    return found


def class_table(scores: Sequence[ClassScore]) -> str:
    """The scores of each class as CSV, which MLflow's pages show as a table."""
    rows = []
    for score in scores:
        name, *numbers, samples = astuple(score)
        quoted = '"' + str(name).replace('"', '""') + '"'
        rows.append(",".join([quoted, *(f"{number:.4f}" for number in numbers), str(samples)]))
    return "\n".join(["class,precision,recall,f1,samples", *rows]) + "\n"


def per_class(scores: Sequence[ClassScore], title: str) -> Figure:
    """Precision and recall of each class, those with the worst F1 first; of many, only these."""
    worst = sorted(scores, key=lambda one: one.f1)[:_MAX_BARS]
    figure = new_figure(7, 1.5 + 0.32 * len(worst), layout="constrained")
    axes = figure.add_subplot()
    places = np.arange(len(worst))[::-1]
    for offset, label, color in ((0.2, "precision", GOOD), (-0.2, "recall", BAD)):
        values = [getattr(one, label) for one in worst]
        axes.barh(places + offset, values, height=0.38, label=label, color=color)
    names = [f"{one.name}  ({one.samples:,})" for one in worst]
    axes.set_yticks(places, names)
    axes.set(xlim=(0, 1), title=f"{title}: worst F1 first (samples)")
    axes.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2)
    return figure


def calibration(scores: Scores, title: str) -> Figure:
    """How often a classifier is right beside how sure it is, over a histogram of its confidence."""
    figure = new_figure(6, 6.5, layout="constrained")
    above, below = figure.subplots(2, 1, height_ratios=[2, 1], sharex=True)
    filled = [one for one in scores.bins if one.count]
    above.plot([0, 1], [0, 1], color=GREY, linestyle="--", label="perfectly calibrated")
    above.plot(
        [one.confidence for one in filled],
        [one.correct / one.count for one in filled],
        marker="o",
        color=GOOD,
        label="the model",
    )
    total = sum(one.count for one in filled)
    gap = sum(abs(one.correct - one.confidence * one.count) for one in filled) / max(total, 1)
    above.set(ylabel="share that is right", ylim=(0, 1.02), title=f"{title}: mean gap {gap:.3f}")
    edges = np.linspace(0, 1, NUM_BINS + 1)
    right = np.array([one.correct for one in scores.bins])
    wrong = np.array([one.count for one in scores.bins]) - right
    place = {"width": 1 / NUM_BINS, "align": "edge", "edgecolor": "white"}
    below.bar(edges[:-1], right, color=GOOD, label="right", **place)
    below.bar(edges[:-1], wrong, bottom=right, color=BAD, label="wrong", **place)
    below.set(xlabel="confidence", ylabel="samples", xlim=(0, 1))
    for axes in (above, below):
        axes.grid(alpha=0.3)
        axes.legend(loc="upper left")
    return figure


def two_classes(scores: Scores, title: str) -> Figure:
    """ROC, precision beside recall, and how often class 1 is right beside its score."""
    bins = scores.score_bins[::-1]
    positives = np.cumsum([0, *(one.positives for one in bins)])
    negatives = np.cumsum([0, *(one.negatives for one in bins)])
    recall = positives / max(positives[-1], 1)
    false_rate = negatives / max(negatives[-1], 1)
    called = positives + negatives
    precision = np.divide(positives, called, out=np.ones(len(called)), where=called > 0)
    area = float(np.trapezoid(recall, false_rate))
    average = float(np.sum(np.diff(recall) * precision[1:]))
    base = positives[-1] / max(called[-1], 1)
    figure = new_figure(12, 4.2, layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    left.plot(false_rate, recall, color=GOOD)
    left.plot([0, 1], [0, 1], color=GREY, linestyle="--")
    left.set(xlabel="false positive rate", ylabel="recall", title=f"{title}: ROC, area {area:.3f}")
    middle.step(recall[1:], precision[1:], where="pre", color=GOOD)
    middle.axhline(base, color=GREY, linestyle="--")
    middle.set(xlabel="recall", ylabel="precision", title=f"average precision {average:.3f}")
    counts = np.array([(one.negatives, one.positives) for one in scores.score_bins])
    counts = counts.reshape(-1, _BINS_OF_A_POINT, 2)
    centers = (np.arange(len(bins)) + 0.5).reshape(-1, _BINS_OF_A_POINT) / len(bins)
    totals = counts.sum(axis=(1, 2))
    is_filled = totals > 0
    share = counts[..., 1].sum(axis=1)[is_filled] / totals[is_filled]
    mean = (counts.sum(axis=2) * centers).sum(axis=1)[is_filled] / totals[is_filled]
    right.plot([0, 1], [0, 1], color=GREY, linestyle="--")
    right.plot(mean, share, color=GOOD, marker="o")
    right.set(xlabel="mean score", ylabel="share of class 1", title="calibration")
    for axes in (left, middle, right):
        axes.set(xlim=(0, 1.01), ylim=(0, 1.02))
        axes.grid(alpha=0.3)
    return figure


def residuals(scores: Scores, title: str) -> Figure:
    """Predictions beside their targets, and a histogram of what they differ by."""
    pairs = np.asarray(scores.pairs, np.float64).reshape(-1, 2)
    target, prediction = pairs.T
    figure = new_figure(9, 4.2, layout="constrained")
    left, right = figure.subplots(1, 2)
    ends = [pairs.min(), pairs.max()] if len(pairs) else [0, 1]
    left.plot(ends, ends, color=GREY, linestyle="--")
    left.scatter(target, prediction, s=8, alpha=0.5, color=GOOD)
    left.set(xlabel="target", ylabel="prediction", title=title)
    differences = prediction - target
    right.hist(differences, bins=40, color=GOOD)
    right.axvline(0, color=GREY, linestyle="--")
    mean, spread = (differences.mean(), differences.std()) if len(pairs) else (0, 0)
    right.set(
        xlabel="prediction - target",
        ylabel="samples",
        title=f"mean {mean:.3g}, standard deviation {spread:.3g}",
    )
    for axes in (left, right):
        axes.grid(alpha=0.3)
    return figure


def as_image(row: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """A raw sample as an image (H, W) or (H, W, channels) for matplotlib; None if it is none."""
    if row.ndim == 3 and row.shape[0] in _CHANNELS and row.shape[2] not in _CHANNELS:
        row = row.transpose(1, 2, 0)
    if row.ndim == 3 and row.shape[2] == 1:
        row = row[..., 0]
    is_grey, is_color = row.ndim == 2, row.ndim == 3 and row.shape[2] in _CHANNELS
    if not (is_grey or is_color) or min(row.shape[:2]) < _MIN_SIDE:
        return None
    if row.dtype.kind not in "biuf":
        return None
    if is_color and row.dtype != np.uint8:
        low, high = float(row.min()), float(row.max())
        return (row.astype(np.float64) - low) / max(high - low, 1e-12)
    return row


def worst_examples(
    images: Sequence[npt.NDArray[Any]],
    samples: Sequence[WorstSample],
    class_names: Sequence[str],
    title: str,
) -> Figure:
    """The worst predicted samples as images, the worst first."""
    chosen = list(zip(images, samples, strict=True))[:NUM_WORST]
    rows = -(-len(chosen) // _COLUMNS)
    figure = new_figure(2.2 * _COLUMNS, 2.6 * rows + 0.5, layout="constrained")
    figure.suptitle(title)
    for number, (image, sample) in enumerate(chosen, start=1):
        axes = figure.add_subplot(rows, _COLUMNS, number)
        axes.imshow(image, cmap="gray", interpolation="nearest")
        axes.set_title(described(sample, class_names), fontsize=9)
        axes.set_axis_off()
    return figure


def described(sample: WorstSample, class_names: Sequence[str]) -> str:
    """What was right and what was predicted, in two lines."""
    if not class_names:
        return f"{sample.target:.4g}, predicted {sample.prediction:.4g}\n#{sample.index}"
    true, predicted = (class_names[int(one)] for one in (sample.target, sample.prediction))
    return f"{true}, predicted {predicted}\np({true}) = {sample.score:.2g}, #{sample.index}"
