"""What is collected of a split's predictions: small, and the same however it is cut."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor

from train_core.loading import load_workload
from train_core.rank.metrics.evaluation_loop import merge_states
from train_core.rank.metrics.score_figures import two_classes
from train_core.rank.metrics.scores import (
    CONFUSION,
    MAX_PAIRS,
    NUM_SCORES,
    NUM_WORST,
    SCORES,
    Scores,
    ScoreStates,
    prediction_metrics,
)
from train_core.workload import Settings, Workload

NUM_SAMPLES, NUM_CLASSES = 300, 4


def classified() -> tuple[Tensor, Tensor]:
    """Probabilities and true classes."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(NUM_SAMPLES, NUM_CLASSES, generator=generator)
    targets = torch.randint(NUM_CLASSES, (NUM_SAMPLES,), generator=generator)
    return logits.softmax(dim=1), targets


def collected(ranges: list[range], *, is_classifier: bool, **columns: Tensor) -> ScoreStates:
    states = ScoreStates(NUM_SAMPLES, is_classifier=is_classifier)
    for samples in ranges:
        part = {name: column[samples.start : samples.stop] for name, column in columns.items()}
        targets = part.pop("targets")
        with torch.inference_mode():
            states.update(samples, part, {"targets": targets})
    return states


def merged(shards: list[list[range]], *, is_classifier: bool, **columns: Tensor) -> Scores:
    measured = [collected(one, is_classifier=is_classifier, **columns) for one in shards]
    states: list[dict[str, Any]] = [
        {name: getattr(one, name) for name in one._defaults} for one in measured
    ]
    whole = ScoreStates(NUM_SAMPLES, is_classifier=is_classifier)
    merge_states(whole, states)
    scores = whole.scores()
    assert scores is not None
    return scores


def test_a_classifiers_confidence_and_its_worst_samples_are_found() -> None:
    probabilities, targets = classified()
    columns = {"prediction": probabilities.argmax(1), "probabilities": probabilities}
    found = merged([[range(NUM_SAMPLES)]], is_classifier=True, targets=targets, **columns)
    assert sum(one.count for one in found.bins) == NUM_SAMPLES
    right = int((columns["prediction"] == targets).sum())
    assert sum(one.correct for one in found.bins) == right
    for place, one in enumerate(found.bins):
        if one.count:
            assert place / len(found.bins) <= one.confidence <= (place + 1) / len(found.bins)
    of_true = probabilities[torch.arange(NUM_SAMPLES), targets]
    expected = of_true.argsort(stable=True)[:NUM_WORST].tolist()
    assert [one.index for one in found.worst] == expected
    worst = found.worst[0]
    assert worst.target == targets[worst.index]
    assert worst.score == pytest.approx(float(of_true[worst.index]))


@pytest.mark.parametrize("is_classifier", [True, False])
def test_shards_and_batches_change_nothing(is_classifier: bool) -> None:
    probabilities, targets = classified()
    columns = {"prediction": probabilities.argmax(1), "probabilities": probabilities}
    if not is_classifier:
        columns = {"prediction": probabilities[:, 0]}
        targets = probabilities[:, 1]
    whole = merged([[range(NUM_SAMPLES)]], is_classifier=is_classifier, targets=targets, **columns)
    shards = [
        [range(50), range(50, 100)],
        [range(100, 150), range(150, 200)],
        [range(200, 250), range(250, NUM_SAMPLES)],
    ]
    cut = merged(shards, is_classifier=is_classifier, targets=targets, **columns)
    assert cut.worst == whole.worst
    assert sorted(cut.pairs) == sorted(whole.pairs)
    assert [(a.count, a.correct) for a in cut.bins] == [(b.count, b.correct) for b in whole.bins]


def test_of_a_regressor_pairs_at_equal_distances_are_kept_and_not_all() -> None:
    states = ScoreStates(5 * MAX_PAIRS, is_classifier=False)
    for start in range(0, 5 * MAX_PAIRS, 1000):
        samples = range(start, start + 1000)
        target = torch.arange(samples.start, samples.stop, dtype=torch.float32)
        states.update(samples, {"prediction": target[:, None] + 1}, {"targets": target})
    scores = states.scores()
    assert scores is not None
    assert scores.kind == "regressor"
    assert scores.pairs == tuple((float(i), i + 1.0) for i in range(0, 5 * MAX_PAIRS, 5))
    assert [one.score for one in scores.worst] == [1.0] * NUM_WORST
    assert [one.index for one in scores.worst] == list(range(NUM_WORST))


def test_what_is_not_a_number_is_left_out() -> None:
    prediction = torch.tensor([1.0, np.nan, np.inf, 4.0])
    states = ScoreStates(4, is_classifier=False)
    states.update(range(4), {"prediction": prediction}, {"targets": torch.zeros(4)})
    scores = states.scores()
    assert scores is not None
    assert [one.index for one in scores.worst] == [3, 0]
    assert len(scores.pairs) == 2


@pytest.mark.parametrize(
    ("predicted", "batch"),
    [
        ({"prediction": torch.zeros(4, 7)}, {"targets": torch.zeros(4, 7)}),
        ({"prediction": torch.zeros(4)}, {"inputs": torch.zeros(4)}),
        ({"text": torch.zeros(4)}, {"targets": torch.zeros(4)}),
    ],
)
def test_outputs_of_another_kind_give_no_scores(
    predicted: dict[str, Tensor], batch: dict[str, Tensor]
) -> None:
    for is_classifier in (True, False):
        states = ScoreStates(4, is_classifier=is_classifier)
        states.update(range(4), predicted, batch)
        assert states.scores() is None


def test_a_workload_that_does_not_say_what_it_predicts_has_none() -> None:
    assert prediction_metrics(Workload(Settings()), 4) == {}
    digits = load_workload("train_core.workloads.digits:Digits", {})
    assert list(prediction_metrics(digits, 4)) == [SCORES, CONFUSION]


@pytest.mark.parametrize("name", ["probabilities", "p_leaves", "risk score", "prediction"])
def test_the_scores_of_two_classes_are_found_whatever_their_column_is_called(name: str) -> None:
    generator = np.random.default_rng(0)
    # In the middle of a bin each, so that no score is rounded.
    places = generator.integers(0, NUM_SCORES, NUM_SAMPLES)
    score = torch.from_numpy((places + 0.5) / NUM_SCORES)
    targets = torch.from_numpy((generator.random(NUM_SAMPLES) < score.numpy()).astype(np.int64))
    column = torch.stack([1 - score, score], dim=1) if name == "probabilities" else score
    columns = {"prediction": (score > 0.5).long(), name: column}
    whole = [range(NUM_SAMPLES)]
    cut = [[range(100), range(100, 170)], [range(170, NUM_SAMPLES)]]
    found = merged(cut, is_classifier=False, targets=targets, **columns)
    in_one = merged([whole], is_classifier=False, targets=targets, **columns)
    assert found.score_bins == in_one.score_bins
    assert sum(one.positives for one in found.score_bins) == int(targets.sum())
    axes = two_classes(found, "test").axes
    assert axes[0].get_title() == f"test: ROC, area {roc_auc_score(targets, score):.3f}"
    expected = average_precision_score(targets, score)
    assert axes[1].get_title() == f"average precision {expected:.3f}"


@pytest.mark.parametrize(
    ("column", "targets"),
    [
        (torch.linspace(-1, 1, NUM_SAMPLES), torch.arange(NUM_SAMPLES) % 2),
        (torch.linspace(0, 1, NUM_SAMPLES), torch.arange(NUM_SAMPLES) % 3),
        (torch.arange(NUM_SAMPLES), torch.arange(NUM_SAMPLES) % 2),
    ],
)
def test_what_is_no_score_of_two_classes_has_no_curves(column: Tensor, targets: Tensor) -> None:
    columns = {"prediction": targets, "score": column}
    found = merged([[range(NUM_SAMPLES)]], is_classifier=False, targets=targets, **columns)
    assert found.score_bins == ()
