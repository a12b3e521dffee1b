from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_core.policy import metric_names

NAMES = st.text(min_size=1)


@pytest.mark.parametrize(
    ("split", "name", "full", "short"),
    [
        ("validation", "loss", "validation/loss", "loss"),
        ("validation", "validation/loss", "validation/loss", "loss"),
        ("test", "accuracy", "test/accuracy", "accuracy"),
        # A workload's own name with a slash, and a word that only begins as the split's does.
        ("test", "top/5", "test/top/5", "top/5"),
        ("test", "tests", "test/tests", "tests"),
        ("test", "validation/loss", "test/validation/loss", "validation/loss"),
    ],
)
def test_a_splits_prefix_is_added_and_taken_away_once(
    split: str, name: str, full: str, short: str
) -> None:
    assert metric_names.full_names(split, {name: 1.0}) == {full: 1.0}
    assert metric_names.short_names(split, {name: 1.0}) == {short: 1.0}
    assert metric_names.short_name(split, full) == short
    assert metric_names.full_name(split, short) == full
    assert metric_names.is_of(split, full)


@pytest.mark.parametrize(
    ("split", "name", "is_of"),
    [
        ("validation", "validation/loss", True),
        ("validation", "train/loss", False),
        ("validation", "validation", False),
        ("validation", "validation_loss", False),
        ("train", "training/loss", False),
    ],
)
def test_a_metric_is_of_the_split_whose_prefix_it_has(split: str, name: str, is_of: bool) -> None:
    assert metric_names.is_of(split, name) is is_of
    assert metric_names.only(split, {name: None}) == ({name: None} if is_of else {})


@given(split=st.sampled_from(["train", "validation", "test"]), name=NAMES)
def test_a_full_name_comes_apart_as_it_was_put_together(split: str, name: str) -> None:
    assert metric_names.split_and_name(metric_names.full_name(split, name)) == (split, name)


def test_a_name_without_a_split_has_none() -> None:
    assert metric_names.split_and_name("samples_per_s") == ("", "samples_per_s")
    assert metric_names.split_and_name("iou/car") == ("", "iou/car")
