from __future__ import annotations

import math
import pickle
from enum import Enum

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from train_core.functions.reports.plain_metrics import (
    as_reported,
    numbers_and_texts,
    plain,
    returned_json,
)
from train_core.storage.records.manifest import ReportedFolder

PLAIN = (bool, int, float, str, list, dict, type(None))


class Split(str, Enum):  # noqa: UP042 (people write it so)
    TRAIN = "train"


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (1, 1.0),
        (True, 1.0),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3.0),
        (np.array(2.5), 2.5),
        (np.array([2.5]), 2.5),
        (torch.tensor(1.5), 1.5),
        (torch.tensor([[4]]), 4.0),
        (torch.tensor(2.0, dtype=torch.bfloat16), 2.0),
        (torch.nn.Parameter(torch.tensor(3.0)), 3.0),
        (float("-inf"), -math.inf),
        (10**400, math.inf),
        (-(10**400), -math.inf),
    ],
)
def test_what_holds_one_number_counts_as_that_number(value: object, number: float) -> None:
    assert numbers_and_texts({"metric": value}) == ({"metric": number}, {})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("epoch 3", "epoch 3"),
        (Split.TRAIN, "train"),
        ([1, 2], "[1, 2]"),
        (np.array([1, 2]), "[1, 2]"),
        (torch.ones(2), "[1.0, 1.0]"),
        (np.zeros(11), "[0. 0. 0. 0. 0. 0. 0. 0. 0. 0. 0.]"),
        ("a" * 2000, "a" * 1000),
        (1 + 2j, "(1+2j)"),
    ],
)
def test_everything_else_counts_as_text(value: object, text: str) -> None:
    assert numbers_and_texts({"metric": value}) == ({}, {"metric": text})


def test_nan_stays_nan_and_nothing_is_left_out() -> None:
    numbers, texts = numbers_and_texts({"nan": float("nan"), "nothing": None})
    assert math.isnan(numbers["nan"])
    assert len(numbers) == 1
    assert texts == {}


def test_metrics_in_a_dict_are_named_after_it_as_ray_names_them() -> None:
    found, _ = numbers_and_texts({"eval": {"loss": 1, "by": {"cat": 2}}, 3: 4})
    assert found == {"eval/loss": 1.0, "eval/by/cat": 2.0, "3": 4.0}


# Names of files may have what is no Unicode: lone surrogates.
TEXTS = st.text(st.characters())
METRICS = st.dictionaries(
    TEXTS | st.integers(),
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers()
        | st.floats()
        | TEXTS
        | st.complex_numbers()
        | st.floats(width=32).map(np.float32)
        | st.floats(width=32).map(torch.tensor)
        | st.lists(st.floats(width=32)).map(torch.tensor),
        lambda inner: st.lists(inner) | st.dictionaries(TEXTS, inner),
        # Larger examples take seconds to draw, and show nothing more.
        max_leaves=12,
    ),
    max_size=6,
)


@given(METRICS)
def test_whatever_is_reported_becomes_plain(metrics: dict[object, object]) -> None:
    numbers, texts = numbers_and_texts(metrics)
    assert all(type(value) is float for value in numbers.values())
    assert all(type(value) is str for value in texts.values())
    assert numbers.keys().isdisjoint(texts)
    handed_on = pickle.loads(pickle.dumps(plain(metrics)))

    def check(value: object) -> None:
        assert type(value) in PLAIN
        for one in (
            value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        ):
            check(one)

    check(handed_on)
    kept = ReportedFolder(name="", world_size=1, metrics=as_reported(handed_on))
    ReportedFolder.model_validate_json(kept.model_dump_json())


@given(METRICS)
def test_whatever_is_returned_is_kept_or_refused(returned: dict[object, object]) -> None:
    try:
        found = returned_json(returned)
    except TypeError:
        return
    kept = ReportedFolder(name="", world_size=1, metrics=found)
    ReportedFolder.model_validate_json(kept.model_dump_json())


def test_what_json_has_no_number_or_text_for_is_said_or_made_one_that_it_has() -> None:
    seed, name = 2**60, "caf\udce9.pt"
    found = as_reported(plain({"seed": seed, "file": name, "n": 3}))
    assert found == {"seed": float(seed), "file": "caf\\udce9.pt", "n": 3}
    assert type(found["seed"]) is float
    assert returned_json({"file": name}) == {"file": "caf\\udce9.pt"}
    with pytest.raises(TypeError, match="a whole number beyond 999999999999999999"):
        returned_json({"seeds": [1, {"first": seed}]})
    with pytest.raises(TypeError, match="a whole number beyond"):
        returned_json(np.array([seed]))
