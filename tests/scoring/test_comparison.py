"""The metric of any choice of rows, the interval of a difference, and McNemar's test."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor, nn
from torchmetrics import MeanMetric, MeanSquaredError, Metric
from torchmetrics.classification import (
    BinaryAUROC,
    MulticlassAccuracy,
    MulticlassAUROC,
    MulticlassF1Score,
    MultilabelAccuracy,
)

from train_core import Batch, Settings, Workload
from train_core.errors import ConfigError
from train_core.policy.metric_names import LOSS
from train_core.rank.metrics.evaluation_loop import add_loss, merge, split_metrics, state_of
from train_core.results import McNemar
from train_core.scoring.comparison import (
    RowMetric,
    RowScores,
    check_adds_up,
    improvement,
    is_aligned,
    joined,
    mcnemar,
    recalls,
    rows_needed,
)
from train_core.scoring.gate_rows import RowScoring
from train_core.scoring.row_sums import RowSums
from train_core.workload import update_metric

CLASSES = 3
Rows = tuple[Tensor, Tensor]


class Given(Workload[Settings]):
    """Whose model's outputs the test makes up; `names` are those of its classes."""

    def __init__(self, metric: Callable[[], Metric], names: tuple[str, ...] = ()) -> None:
        super().__init__(Settings())
        self.class_names = names  # type: ignore[misc]  # each test has its own
        self._metric = metric

    def metrics(self) -> dict[str, Metric]:
        return {"metric": self._metric()}

    def predictions(self, outputs: Any) -> dict[str, Tensor]:
        return {"prediction": outputs.argmax(1)}

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        return nn.functional.cross_entropy(outputs, batch["targets"])


def scores_of(
    workload: Given, rows: Rows, batch_size: int = 4, name: str = "metric"
) -> tuple[RowScores, float]:
    """What a worker gives of these rows, as one shard, and the metric over all of them."""
    whole, single = split_metrics(workload)[name], split_metrics(workload)[name]
    scored = RowScoring(name)
    for outputs, targets in zip(*(part.split(batch_size) for part in rows), strict=True):
        batch = {"inputs": outputs, "targets": targets}
        if name == LOSS:
            add_loss(whole, workload, workload.loss(outputs, batch), batch)
        else:
            update_metric(workload, name, whole, outputs, batch)
        scored.add(workload, single, outputs, batch)
    found = scored.result(single, state_of(whole))
    return found, merge({name: whole}, [{name: total} for total in found.totals])[name]


def row_metric(metric: Callable[[], Metric], rows: Rows, batch_size: int = 4) -> RowMetric:
    return RowMetric("metric", metric(), *scores_of(Given(metric), rows, batch_size))


def classified(draw: st.DrawFn, num_rows: int) -> Rows:
    """Scores of classes and targets: rows of a classifier."""
    seed = draw(st.integers(0, 2**31))
    random = torch.Generator().manual_seed(seed)
    scores = torch.rand(num_rows, CLASSES, generator=random)
    return scores, torch.randint(CLASSES, (num_rows,), generator=random)


def two_classes(draw: st.DrawFn, num_rows: int) -> Rows:
    scores, targets = classified(draw, num_rows)
    return scores[:, 0], targets % 2


def numbers(draw: st.DrawFn, num_rows: int) -> Rows:
    scores, targets = classified(draw, num_rows)
    return 10 * scores[:, 0], targets.float()


def labels(draw: st.DrawFn, num_rows: int) -> Rows:
    scores, _ = classified(draw, num_rows)
    return scores, (scores.flip(0) > 0.5).long()


KINDS: dict[str, tuple[Callable[[], Metric], Callable[[st.DrawFn, int], Rows]]] = {
    "accuracy": (lambda: MulticlassAccuracy(CLASSES, average="micro"), classified),
    "accuracy macro": (lambda: MulticlassAccuracy(CLASSES, average="macro"), classified),
    "F1": (lambda: MulticlassF1Score(CLASSES), classified),
    "several labels": (lambda: MultilabelAccuracy(CLASSES), labels),
    "squared error": (MeanSquaredError, numbers),
    "root of it": (lambda: MeanSquaredError(squared=False), numbers),
    "AUROC": (BinaryAUROC, two_classes),
    "AUROC in bins": (lambda: BinaryAUROC(thresholds=20), two_classes),
    "AUROC of classes": (lambda: MulticlassAUROC(CLASSES), classified),
}


@pytest.mark.promise("gate-rows")
@pytest.mark.filterwarnings("ignore:No (positive|negative) samples")
@pytest.mark.filterwarnings("ignore:.*not (present|exist) in the target")
@pytest.mark.parametrize("kind", KINDS)
@given(data=st.data())
@settings(max_examples=25)
def test_a_metric_of_any_choice_of_rows_is_torchmetrics_own(kind: str, data: st.DataObject) -> None:
    metric, make = KINDS[kind]
    num_rows = data.draw(st.integers(2, 24))
    outputs, targets = data.draw(st.composite(make)(num_rows))
    chosen = data.draw(st.lists(st.integers(0, num_rows - 1), min_size=1, max_size=40))
    found = row_metric(metric, (outputs, targets), data.draw(st.integers(1, num_rows)))
    expected = metric()
    expected.update(outputs[chosen], targets[chosen])
    assert found(np.array(chosen)) == pytest.approx(float(expected.compute()), rel=1e-5, abs=1e-6)


@given(data=st.data())
@settings(max_examples=25)
def test_the_loss_of_any_choice_of_rows_is_their_mean(data: st.DataObject) -> None:
    num_rows = data.draw(st.integers(2, 24))
    rows = data.draw(st.composite(classified)(num_rows))
    chosen = data.draw(st.lists(st.integers(0, num_rows - 1), min_size=1, max_size=40))
    workload = Given(lambda: MulticlassAccuracy(CLASSES))
    scores, total = scores_of(workload, rows, data.draw(st.integers(1, num_rows)), LOSS)
    found = RowMetric(LOSS, split_metrics(workload)[LOSS], scores, total)
    expected = nn.functional.cross_entropy(rows[0][chosen], rows[1][chosen])
    assert found(np.array(chosen)) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.promise("gate-rows")
@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (torchmetrics.PearsonCorrCoef(), "its state 'mean_x' is neither a sum nor a list"),
        (torchmetrics.MaxMetric(), "its state 'max_value' is neither a sum nor a list"),
        (torchmetrics.MinMaxMetric(MeanSquaredError()), "it has no state of its own"),
        (MeanSquaredError() + MeanMetric(), "it has no state of its own"),
    ],
)
def test_a_metric_that_does_not_add_up_is_refused(metric: Metric, said: str) -> None:
    with pytest.raises(ConfigError, match=f"metric 'r' cannot be compared row by row.*{said}"):
        check_adds_up("r", metric)


class TwoARow(Metric):
    """Keeps as many entries of a row as its target says."""

    full_state_update = False
    entries: list[Tensor]

    def __init__(self) -> None:
        super().__init__()
        self.add_state("entries", [], "cat")

    def update(self, outputs: Tensor, targets: Tensor) -> None:
        self.entries.append(outputs.repeat_interleave(targets.long(), 0))

    def compute(self) -> Tensor:
        return torch.cat(self.entries).mean()


@pytest.mark.parametrize("targets", [[2, 2, 2], [1, 2, 1], [1, 0, 2]])
def test_a_metric_that_does_not_keep_one_entry_a_row_is_refused(targets: list[int]) -> None:
    rows = (torch.tensor([0.1, 0.2, 0.3]), torch.tensor(targets))
    with pytest.raises(ConfigError, match="one entry to the metric's state 'entries'"):
        row_metric(TwoARow, rows)


def test_a_metric_that_looks_at_its_whole_batch_is_refused() -> None:
    # Taken alone, the first row looks like a probability, and no sigmoid is applied to it.
    rows = (torch.tensor([0.9, 2.0, -3.0]), torch.tensor([1, 0, 0]))
    with pytest.raises(ConfigError, match=r"taken one by one is 1, and 0\.5 of them as batches"):
        row_metric(BinaryAUROC, rows)


class WholeBatches(MeanMetric):
    """Refuses a row alone."""

    def update(self, value: Tensor, weight: Tensor) -> None:
        if len(value) < 2:
            raise ValueError("give me more rows")
        super().update(value, weight)


def test_a_metric_that_takes_no_single_row_is_refused_with_its_own_words() -> None:
    rows = (torch.rand(4), torch.rand(4))
    with pytest.raises(ConfigError, match="of a single row: ValueError: give me more rows"):
        row_metric(WholeBatches, rows, batch_size=2)


class Remembering(MeanMetric):
    """Keeps its value in an attribute that is no state, until it is reset."""

    remembered: Tensor | None = None

    def compute(self) -> Tensor:
        if self.remembered is None:
            self.remembered = super().compute()
        return self.remembered

    def reset(self) -> None:
        super().reset()
        self.remembered = None


def test_a_metric_with_a_reset_of_its_own_is_reset() -> None:
    rows = (torch.tensor([1.0, 2.0, 3.0]), torch.ones(3))
    found = row_metric(Remembering, rows)
    assert [found(np.array([row])) for row in range(3)] == [1.0, 2.0, 3.0]


def test_a_metric_that_was_computed_before_says_nothing_of_that() -> None:
    rows = (torch.tensor([1.0, 2.0, 3.0]), torch.ones(3))
    used = MeanMetric()
    used.update(7.0)
    used.compute()
    found = RowMetric("metric", used, *scores_of(Given(MeanMetric), rows))
    assert [found(np.array([row])) for row in range(3)] == [1.0, 2.0, 3.0]


def test_what_is_not_of_the_batch_is_of_every_row() -> None:
    class Scaled(Given):
        def update_metric(self, metric: Metric, outputs: Any, batch: Batch, name: str) -> None:
            metric.update(outputs["scores"] * outputs["scale"], batch["targets"])

    workload = Scaled(MeanSquaredError)
    scored, whole, single = RowScoring("metric"), MeanSquaredError(), MeanSquaredError()
    outputs = {"scores": torch.rand(5), "scale": torch.tensor(3.0)}
    batch = {"targets": torch.rand(5)}
    update_metric(workload, "metric", whole, outputs, batch)
    scored.add(workload, single, outputs, batch)
    total = float(whole.compute())
    found = RowMetric("metric", MeanSquaredError(), scored.result(single, state_of(whole)), total)
    assert found(np.arange(5)) == pytest.approx(total)


class Mixed(Metric):
    """Its sum is a whole number, until a row adds another one; the first row adds none."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("total", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, values: torch.Tensor, _: torch.Tensor) -> None:
        for value in values.tolist():
            self.total = self.total + (int(value) if value == int(value) else value)

    def compute(self) -> torch.Tensor:
        return self.total.float()


def test_rows_may_add_numbers_of_several_types() -> None:
    values = torch.tensor([0.0, 2.0, 0.5, 3.0])
    scored, whole, single = RowScoring("metric"), Mixed(), Mixed()
    workload, batch = Given(Mixed), {"targets": torch.zeros(4)}
    update_metric(workload, "metric", whole, values, batch)
    scored.add(workload, single, values, batch)
    found = RowMetric("metric", Mixed(), scored.result(single, state_of(whole)), 5.5)
    assert found(np.array([1, 1, 2])) == pytest.approx(4.5)


def accuracy() -> Metric:
    return MulticlassAccuracy(CLASSES, average="micro")


def of_classes(predicted: list[int], targets: list[int]) -> Rows:
    return nn.functional.one_hot(torch.tensor(predicted), CLASSES).float(), torch.tensor(targets)


def scored_classes(predicted: list[int], targets: list[int]) -> RowScores:
    names = tuple(f"class {number}" for number in range(CLASSES))
    return scores_of(Given(accuracy, names), of_classes(predicted, targets))[0]


TARGETS = [0, 1, 2] * 20
WRONG_AT = (0, 7, 9, 13, 22, 40)
CHAMPION = [(one + 1) % CLASSES if row in WRONG_AT else one for row, one in enumerate(TARGETS)]


def difference(
    before: list[int], now: list[int], order: Any = "max", seed: int = 0, confidence: float = 0.95
) -> Any:
    pair = (row_metric(accuracy, of_classes(one, TARGETS)) for one in (before, now))
    return improvement(*pair, order, confidence=confidence, seed=seed, num_resamples=400)


@pytest.mark.promise("gate-interval")
def test_of_two_equal_models_the_interval_is_nothing() -> None:
    found = difference(CHAMPION, CHAMPION)
    assert (found.value, found.low, found.high) == (0.0, 0.0, 0.0)
    assert not any(math.copysign(1, bound) < 0 for bound in (found.value, found.low, found.high))


@pytest.mark.promise("gate-interval")
def test_the_interval_is_that_of_the_paired_differences() -> None:
    found = difference(CHAMPION, TARGETS)
    assert found.value == pytest.approx(len(WRONG_AT) / len(TARGETS))
    assert 0 < found.low < found.value < found.high < 0.25
    # By hand: the share of the resampled rows on which the champion is wrong.
    random = np.random.default_rng(0)
    wrong = np.isin(np.arange(len(TARGETS)), WRONG_AT)
    shares = [wrong[random.integers(0, len(wrong), len(wrong))].mean() for _ in range(4000)]
    assert found.low == pytest.approx(np.percentile(shares, 2.5), abs=0.02)
    assert found.high == pytest.approx(np.percentile(shares, 97.5), abs=0.02)


@pytest.mark.promise("gate-interval")
def test_the_rows_on_which_two_models_differ_are_counted() -> None:
    found = difference(CHAMPION, TARGETS)
    assert (found.differing_rows, found.needed_rows) == (len(WRONG_AT), 6)
    assert not found.lacks_rows
    # The interval of a bootstrap is above 0 all the same.
    few = [(one + 1) % CLASSES if row in WRONG_AT[:4] else one for row, one in enumerate(TARGETS)]
    chance = difference(few, TARGETS)
    assert chance.low > 0
    assert chance.lacks_rows
    assert difference(CHAMPION, CHAMPION).differing_rows == 0


@pytest.mark.parametrize(
    "kind",
    [
        lambda classes: MulticlassAccuracy(classes, average="macro"),
        MulticlassAUROC,
    ],
    ids=["sums", "lists"],
)
def test_a_model_with_a_class_more_is_compared_and_differs_in_each_row(
    kind: Callable[[int], Metric],
) -> None:
    targets = torch.tensor(TARGETS)
    random = torch.Generator().manual_seed(0)
    pair = [
        row_metric(lambda: kind(classes), (torch.rand(60, classes, generator=random), targets))  # noqa: B023 (called at once)
        for classes in (CLASSES, CLASSES + 1)
    ]
    found = improvement(*pair, "max", confidence=0.9, seed=0, num_resamples=50)
    assert found is None or found.differing_rows == 60


@pytest.mark.parametrize("confidence", [0.5, 0.8, 0.9, 0.95, 0.99, 0.999])
def test_the_rows_that_are_needed_are_those_of_the_sign_test(confidence: float) -> None:
    needed = rows_needed(confidence)
    assert stats.binomtest(needed, needed, 0.5).pvalue <= 1 - confidence + 1e-12
    assert (
        stats.binomtest(needed - 1, needed - 1, 0.5).pvalue > 1 - confidence if needed > 1 else True
    )


def test_more_confidence_makes_the_interval_wider() -> None:
    narrow, wide = (difference(CHAMPION, TARGETS, confidence=level) for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


@pytest.mark.promise("gate-interval")
def test_with_order_min_less_is_better() -> None:
    up, down = difference(CHAMPION, TARGETS, "max"), difference(CHAMPION, TARGETS, "min")
    assert (down.value, down.low, down.high) == pytest.approx((-up.value, -up.high, -up.low))
    swapped = difference(TARGETS, CHAMPION, "min")
    assert (swapped.value, swapped.low) == pytest.approx((up.value, up.low))


@pytest.mark.promise("gate-interval")
def test_the_same_seed_gives_the_same_interval_to_the_bit() -> None:
    first, again, other = (difference(CHAMPION, TARGETS, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first != other


def test_of_one_row_or_of_no_number_there_is_no_interval() -> None:
    one = (torch.rand(1), torch.rand(1))
    alone = row_metric(MeanSquaredError, one)
    assert improvement(alone, alone, "min", confidence=0.9, seed=0, num_resamples=50) is None

    class Nowhere(MeanMetric):
        def compute(self) -> Tensor:
            return torch.tensor(math.inf)

    far = row_metric(Nowhere, (torch.rand(4), torch.rand(4)))
    assert improvement(far, far, "min", confidence=0.9, seed=0, num_resamples=50) is None


@pytest.mark.promise("gate-interval")
@pytest.mark.parametrize(
    ("predicted", "expected"),
    [
        # Two-sided: 2 * (1 + 10) / 2^10, of 1 in 10.
        (
            [0] * 20,
            McNemar(only_challenger_right=1, only_champion_right=9, p_value=22 / 1024),
        ),
        ([], McNemar(only_challenger_right=0, only_champion_right=0, p_value=1.0)),
    ],
)
def test_mcnemars_p_value_is_the_one_by_hand(predicted: list[int], expected: McNemar) -> None:
    # Both are right in the last 10 rows; on the first 10 one of them is.
    targets = [0] * 20
    before = [0] * 9 + [1] + [0] * 10
    now = [1] * 9 + [0] + [0] * 10 if predicted else before
    found = mcnemar(scored_classes(before, targets), scored_classes(now, targets))
    assert found
    assert found.p_value == pytest.approx(expected.p_value)
    assert found == expected.model_copy(update={"p_value": found.p_value})


def test_models_without_classes_have_no_mcnemar_and_no_recall() -> None:
    scores, _ = scores_of(Given(MeanSquaredError), (torch.rand(4), torch.rand(4)))
    assert mcnemar(scores, scores) is None
    assert recalls(scores, ()) == {}


def test_recall_is_a_classes_own_and_none_where_no_row_has_it() -> None:
    scores = scored_classes([0, 0, 1, 1], [0, 0, 0, 1])
    assert recalls(scores, ("a", "b", "c")) == {"a": pytest.approx(2 / 3), "b": 1.0, "c": None}


def test_shards_are_joined_in_their_order_and_empty_ones_left_out() -> None:
    predicted, targets = [0, 1, 2, 2, 1], [0, 1, 1, 2, 0]
    whole = scored_classes(predicted, targets)
    parts = [scored_classes(predicted[:3], targets[:3]), None]
    parts.append(scored_classes(predicted[3:], targets[3:]))
    found = joined(parts)
    assert found.num_rows == whole.num_rows == 5
    assert is_aligned(found, whole)
    assert np.array_equal(found.predictions, whole.predictions)
    for name, of_whole in whole.states.items():
        of_parts = found.states[name]
        assert isinstance(of_parts, RowSums)
        assert isinstance(of_whole, RowSums)
        assert not of_parts.differs(of_whole).any()
    total = merge({"": accuracy()}, [{"": state} for state in found.totals])[""]
    assert RowMetric("metric", accuracy(), found, total)(np.arange(5)) == pytest.approx(3 / 5)


def test_what_one_shard_could_not_measure_is_not_compared() -> None:
    whole = scored_classes([0], [0])
    broken = replace(whole, states={}, failure="no single row")
    with pytest.raises(ConfigError, match="no single row"):
        RowMetric("metric", accuracy(), joined([whole, broken]), 1.0)


@pytest.mark.parametrize(
    ("targets", "is_same"), [([0, 1], True), ([1, 0], False), ([0], False), ([0, 1, 2], False)]
)
def test_other_rows_or_other_targets_are_not_compared(targets: list[int], is_same: bool) -> None:
    other = scored_classes([0] * len(targets), targets)
    assert is_aligned(scored_classes([1, 1], [0, 1]), other) is is_same
