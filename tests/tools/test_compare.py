"""What differs between two states is named, with the first element and how far it is off."""

from __future__ import annotations

import math
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tests.rank.alone import run
from tests.ranks.processes import train
from train_core.errors import CheckpointError
from train_core.storage.run_folder import RunFolder
from train_core.tools.compare import compare_runs, compare_states

DTYPES = [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool]


def of_model(**tensors: Tensor) -> dict[str, Any]:
    return {"model": tensors}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 4)], ids=str)
def test_a_state_is_the_same_as_itself(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.ones(shape, dtype=dtype)
    found = compare_states(of_model(w=tensor), of_model(w=tensor.clone()))
    assert found.is_same
    assert found.num_tensors == 1


@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.5, math.inf, math.nan]), min_size=1, max_size=12),
    st.data(),
)
def test_the_first_element_whose_bits_differ_is_named(
    values: list[float], data: st.DataObject
) -> None:
    changed = data.draw(st.sets(st.integers(0, len(values) - 1)))
    a = torch.tensor(values)
    b = a.clone()
    b.view(torch.int32)[list(changed)] ^= 1
    found = compare_states(of_model(w=a), of_model(w=b))
    assert found.is_same == (not changed)
    if changed:
        (difference,) = found.tensors
        assert difference.index == [min(changed)]
        assert difference.num_different == len(changed)


def test_containers_and_arrays_of_a_state_are_compared() -> None:
    def state(maxlen: int | None, last: int, number: float) -> dict[str, Any]:
        found = {"window": deque([1, torch.tensor(last)], maxlen), "kinds": {"b", "a"}}
        return {"optimizer": found | {"array": np.array([1.0, number])}}

    assert compare_states(state(3, 2, 1.0), state(3, 2, 1.0)).is_same
    (found,) = compare_states(state(3, 2, 1.0), state(None, 2, 1.0)).values[:1]
    assert found.name.startswith("optimizer/window")
    (tensor,) = compare_states(state(3, 2, 1.0), state(3, 5, 1.0)).tensors
    assert tensor.name == "optimizer/window/elements/1"
    (tensor,) = compare_states(state(3, 2, 1.0), state(3, 2, 1.5)).tensors
    assert (tensor.name, tensor.a, tensor.b) == ("optimizer/array", 1.0, 1.5)


def test_how_far_tensors_are_apart_and_where() -> None:
    a = torch.zeros(2, 3)
    b = a.clone()
    b[1, 0], b[1, 2] = 0.25, -0.5
    (found,) = compare_states(of_model(w=a), of_model(w=b)).tensors
    assert (found.name, found.kind) == ("model/w", "values")
    assert (found.index, found.a, found.b) == ([1, 0], 0.0, 0.25)
    assert (found.num_different, found.num_elements, found.max_difference) == (2, 6, 0.5)


@pytest.mark.parametrize(
    ("a", "b", "kind", "told"),
    [
        (torch.zeros(2), torch.zeros(3), "shape", ("float32 (2,)", "float32 (3,)")),
        (torch.zeros(2), torch.zeros(2).half(), "dtype", ("float32 (2,)", "float16 (2,)")),
        (torch.zeros(1), torch.tensor([math.nan]), "values", (0.0, "nan")),
        (torch.zeros(1), -torch.zeros(1), "values", (0.0, -0.0)),
    ],
)
def test_tensors_of_another_kind(a: Tensor, b: Tensor, kind: str, told: tuple[Any, Any]) -> None:
    (found,) = compare_states(of_model(w=a), of_model(w=b)).tensors
    assert found.kind == kind
    assert repr((found.a, found.b)) == repr(told)


def test_what_one_of_them_lacks() -> None:
    w = torch.zeros(1)
    found = compare_states(of_model(old=w), of_model(new=w))
    assert [(one.name, one.kind) for one in found.tensors] == [
        ("model/old", "only in A"),
        ("model/new", "only in B"),
    ]
    assert found.num_tensors == 2


def test_numbers_and_metrics_are_compared_beside_tensors() -> None:
    def state(rate: float, loss: float, seconds: float) -> dict[str, Any]:
        return {
            "optimizer": {"param_groups": [{"lr": rate, "betas": (0.9, 0.99)}], "state": {}},
            "progress": {"metrics": {"train/loss": loss}, "elapsed_s": seconds},
        }

    assert compare_states(state(0.1, math.nan, 1), state(0.1, math.nan, 2)).is_same
    found = compare_states(state(0.1, 0.5, 1), state(0.2, 0.25, 2))
    assert [(one.name, one.a, one.b) for one in found.values] == [
        ("optimizer/param_groups/0/lr", 0.1, 0.2)
    ]
    assert [(one.name, one.a, one.b) for one in found.metrics] == [("train/loss", 0.5, 0.25)]


@pytest.mark.promise("verify-resume")
def test_two_runs_first_differ_where_they_parted(tmp_path: Path) -> None:
    storage = str(tmp_path)
    asked = {
        "workload": "tests.rank.tiny:Tiny",
        "batch_size": 32,
        "epochs": 2,
        "max_steps": 6,
        "checkpoint_every_steps": 2,
        "checkpoint_backpressure": "wait",
        "checkpoint_every_epochs": 0,
        "keep_last": 9,
    }
    train(storage, "a", attempt=1, workers=1, config=asked)
    train(storage, "b", attempt=1, workers=1, config=asked, point="in_step", step=3, after=2)
    train(storage, "b", attempt=2, workers=1, config=asked)
    a, b, other = (RunFolder(storage, name) for name in ("a", "b", "other"))
    found = compare_runs(a, b)
    assert found.is_same
    # Six steps and one validation, at the end of the epoch's five.
    assert (found.steps, found.num_entries, found.num_validations) == ([2, 4, 6], 7, 1)

    run(other, **asked | {"batch_size": 31})
    found = compare_runs(a, other)
    assert found.metric is not None
    assert (found.metric.step, found.metric.name) == (1, "train/loss")
    assert found.state is not None
    assert found.steps == [2]


def test_runs_without_a_common_step_cannot_be_compared(tmp_path: Path) -> None:
    a, b = (RunFolder(str(tmp_path), name) for name in ("a", "b"))
    run(a, max_steps=2)
    run(b, max_steps=3)
    with pytest.raises(CheckpointError, match="no checkpoint of the same step"):
        compare_runs(a, b)
