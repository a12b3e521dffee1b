from __future__ import annotations

import math
import random
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_core.policy.checkpoints.selection import Candidate, Order, ranked, unmeasured


def candidates(*values: float | None) -> list[Candidate]:
    """One candidate a step, named after its step."""
    return [
        Candidate(f"{step}", step, {"validation/loss": value}) for step, value in enumerate(values)
    ]


@pytest.mark.promise("best-checkpoint")
@pytest.mark.parametrize(
    ("values", "order", "expected"),
    [
        ([0.1, 0.3, 0.2], "max", "120"),
        ([0.1, 0.3, 0.2], "min", "021"),
        ([0.5, 0.5, 0.5], "max", "210"),
        ([0.5, 0.5, 0.5], "min", "210"),
        ([0.5, 0.7, 0.5, 0.7], "max", "3120"),
        ([math.nan, 0.1, None, 0.2], "max", "3120"),
        ([math.nan, 0.1, None, 0.2], "min", "1320"),
        ([None, math.nan], "max", "10"),
        ([-1.0, 0.0, 1.0], "max", "210"),
        ([-1.0, 0.0, 1.0], "min", "012"),
        ([], "max", ""),
    ],
)
def test_the_best_is_first_ties_go_to_the_later_step_and_the_unmeasured_are_last(
    values: list[float | None], order: Order, expected: str
) -> None:
    found = ranked(candidates(*values), "validation/loss", order)
    assert "".join(candidate.name for candidate in found) == expected


@pytest.mark.parametrize("order", ["max", "min"])
def test_a_candidate_that_lacks_the_metric_is_last(order: Order) -> None:
    lacks: Mapping[str, float | None] = {"train/loss": 0.0}
    found = ranked([*candidates(0.5, 0.1), Candidate("2", 2, lacks)], "validation/loss", order)
    assert found[-1].name == "2"


@given(st.lists(st.none() | st.floats()), st.sampled_from(["max", "min"]), st.randoms())
def test_the_order_of_asking_does_not_matter(
    values: list[float | None], order: Order, random: random.Random
) -> None:
    asked = candidates(*values)
    shuffled = list(asked)
    random.shuffle(shuffled)
    assert ranked(shuffled, "validation/loss", order) == ranked(asked, "validation/loss", order)


@pytest.mark.parametrize(
    ("metric", "told"),
    [("loss", ""), ("epoch", ""), ("", ""), ("lost", "measured were: epoch, loss")],
)
def test_a_metric_that_no_checkpoint_has_is_told(metric: str, told: str) -> None:
    said = unmeasured(metric, [{"loss": None}, {"loss": 0.5, "epoch": 1.0}, {}])
    assert bool(said) == bool(told)
    assert told in said
    assert repr(metric) in said or not said


def test_where_no_checkpoint_is_there_none_is_called_the_best() -> None:
    assert "so none is the best by 'loss'" in unmeasured("loss", [])
    assert not unmeasured("", [])
