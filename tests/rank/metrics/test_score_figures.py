"""Figures of a split's predictions."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

from train_core.policy.metric_names import CHECKPOINT_BLOCKED_S, LEARNING_RATE, SAMPLES_PER_S
from train_core.rank.metrics import figures, score_figures
from train_core.rank.metrics.scores import ConfidenceBin, ScoreBin, Scores, WorstSample
from train_core.storage.records.journal import Entry

NAMES = ["cat", 'a "dog"', "no, bird"]
BINS = tuple(ConfidenceBin(count=n, correct=n // 2, confidence=n / 21) for n in range(20))
PAIRS = tuple((float(i), i + 0.5) for i in range(20))
WORST = tuple(WorstSample(index=i, target=0, prediction=1, score=0.01 * (i + 1)) for i in range(16))
CLASSIFIER = Scores(kind="classifier", bins=BINS, worst=WORST)
REGRESSOR = Scores(kind="regressor", pairs=PAIRS, worst=WORST)
BINARY = Scores(
    kind="regressor",
    score_bins=tuple(ScoreBin(negatives=500 - n, positives=n) for n in range(500)),
)
ENTRIES = [
    Entry(
        step=step,
        time=step,
        metrics={LEARNING_RATE: 0.1 / step, "train/loss": 1 / step},
        rates={SAMPLES_PER_S: 100.0} | ({CHECKPOINT_BLOCKED_S: 0.5} if step % 10 == 0 else {}),
    )
    for step in range(1, 100)
]


def table() -> list[list[int]]:
    truth, called = np.random.default_rng(0).integers(0, 3, (2, 100))
    return [list(map(int, row)) for row in confusion_matrix(truth, called)]


def scores() -> list[score_figures.ClassScore]:
    return score_figures.class_scores(table(), NAMES)


def worst_examples() -> Figure | None:
    image = np.arange(64, dtype=np.uint8).reshape(8, 8)
    return score_figures.worst_examples([image] * 16, WORST, NAMES, "test")


DRAWN: dict[str, Callable[[], Figure | None]] = {
    "curves": lambda: figures.curves(ENTRIES),
    "learning rate": lambda: figures.learning_rate(ENTRIES),
    "throughput": lambda: figures.throughput(ENTRIES),
    "confusion": lambda: figures.confusion_matrix(table(), NAMES, "test"),
    "per class": lambda: score_figures.per_class(scores(), "test"),
    "calibration": lambda: score_figures.calibration(CLASSIFIER, "test"),
    "two classes": lambda: score_figures.two_classes(BINARY, "test"),
    "residuals": lambda: score_figures.residuals(REGRESSOR, "test"),
    "worst": worst_examples,
}


@pytest.mark.promise("figures")
@pytest.mark.parametrize("name", DRAWN)
def test_a_figure_is_dark_on_a_white_of_its_own(name: str) -> None:
    figure = DRAWN[name]()
    assert figure is not None
    picture = np.asarray(Image.open(io.BytesIO(figures.png(figure))).convert("RGBA"))
    # Nothing of the page shines through, whatever its colour.
    assert picture[..., 3].min() == 255
    assert (picture[[0, 0, -1, -1], [0, -1, 0, -1], :3] == 255).all()
    brightness = picture[..., :3].mean(axis=2)
    assert (brightness < 60).mean() > 0.002, "there is text"


def test_the_scores_of_each_class_are_those_of_scikit_learn() -> None:
    truth, called = np.random.default_rng(0).integers(0, 3, (2, 100))
    expected = precision_recall_fscore_support(truth, called)
    found = score_figures.class_scores(table(), NAMES)
    for values, name in zip(expected, ("precision", "recall", "f1", "samples"), strict=True):
        assert [getattr(one, name) for one in found] == pytest.approx(list(values))
    rows = list(csv.DictReader(io.StringIO(score_figures.class_table(found))))
    assert [row["class"] for row in rows] == NAMES
    assert [int(row["samples"]) for row in rows] == list(expected[3])


def test_a_class_that_nobody_has_or_predicts_has_no_score() -> None:
    (there, absent) = score_figures.class_scores([[5, 0], [0, 0]], ["there", "absent"])
    assert (there.f1, absent.precision, absent.recall, absent.f1) == (1, 0, 0, 0)


def test_a_journal_without_rates_has_no_figures_of_them() -> None:
    entries = [Entry(step=1, time=0, metrics={"loss": None}), Entry(step=2, time=1, metrics={})]
    assert figures.throughput(entries) is None
    assert figures.learning_rate(entries) is None


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((8, 8), (8, 8)),
        ((8, 8, 1), (8, 8)),
        ((1, 8, 8), (8, 8)),
        ((3, 16, 12), (16, 12, 3)),
        ((16, 12, 3), (16, 12, 3)),
        ((16, 12, 4), (16, 12, 4)),
        ((5,), None),
        ((2, 2), None),
        ((16, 12, 7), None),
        ((2, 3, 4, 5), None),
    ],
)
def test_what_is_an_image_is_shown_as_one(
    shape: tuple[int, ...], expected: tuple[int, ...] | None
) -> None:
    found = score_figures.as_image(np.zeros(shape, np.uint8))
    assert (None if found is None else found.shape) == expected


def test_colours_of_any_range_are_shown() -> None:
    image = np.linspace(-2, 2, 8 * 8 * 3).reshape(8, 8, 3)
    found = score_figures.as_image(image)
    assert found is not None
    assert (found.min(), found.max()) == (0, 1)
    assert score_figures.as_image(np.array([["a", "b"]] * 2)) is None
