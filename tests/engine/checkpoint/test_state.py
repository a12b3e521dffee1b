"""A state goes through JSON and tensors and comes back the same."""

from __future__ import annotations

import json
from collections import OrderedDict
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from tests.words import PYTHONS_WORDS
from train_core.engine.checkpoint.state import (
    TrainingState,
    load_optimizer_state,
    optimizer_state,
    pack,
    unpack,
)
from train_core.errors import CheckpointError, WorkloadError

numbers = st.floats(allow_nan=False) | st.integers() | st.booleans() | st.none() | st.text()
states = st.recursive(
    numbers | st.builds(torch.arange, st.integers(0, 3)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(alphabet="ab$", max_size=7) | st.integers(), inner, max_size=3)
    ),
    max_leaves=12,
)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, dict):
        return list(left) == list(right) and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list | tuple):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


@given(states)
def test_any_state_survives_json_and_tensors(state: Any) -> None:
    plain, tensors = pack(state)
    assert same(state, unpack(json.loads(json.dumps(plain)), tensors))


@pytest.mark.parametrize("hostile", [{"$tensor": "x"}, {"$tuple": [1]}, {"$items": []}])
def test_a_state_that_looks_like_a_mark_is_not_one(hostile: dict[str, Any]) -> None:
    plain, tensors = pack(hostile)
    assert unpack(plain, tensors) == hostile


def test_what_could_only_be_pickled_is_refused_with_its_place() -> None:
    with pytest.raises(WorkloadError, match="holds a set at schedule/milestones"):
        pack({"schedule": {"milestones": {1, 2}}})


def test_missing_tensor_is_named() -> None:
    plain, _ = pack({"model": {"weight": torch.ones(1)}})
    with pytest.raises(CheckpointError, match="'model/weight'"):
        unpack(plain, {})


def trained_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    decayed, plain = model[0].parameters(), model[1].parameters()  # type: ignore[index]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": plain, "weight_decay": 0.0}])
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return optimizer


def test_optimizer_is_saved_by_names_and_restored() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    optimizer = trained_optimizer(model)
    state = optimizer_state(model, optimizer)
    assert set(state["state"]) == {"0.weight", "0.bias", "1.weight", "1.bias"}
    other = torch.optim.AdamW(
        [{"params": model[0].parameters()}, {"params": model[1].parameters(), "weight_decay": 0.0}]
    )
    load_optimizer_state(model, other, state)
    assert same(other.state_dict(), optimizer.state_dict())


def test_optimizer_of_another_model_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    state = optimizer_state(model, trained_optimizer(model))
    larger = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1), nn.Linear(1, 1))
    mended_by = "Continue the run with the code that it began with, or begin a new one"
    with pytest.raises(CheckpointError, match=rf"only: 2\.bias, 2\.weight. {mended_by}"):
        load_optimizer_state(larger, torch.optim.AdamW(larger.parameters()), state)


def test_restored_moments_have_the_strides_of_their_parameters() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Linear(1, 1)).to(
        memory_format=torch.channels_last  # type: ignore[call-overload]
    )
    state = optimizer_state(model, trained_optimizer(model))
    contiguous, tensors = pack(state)
    stored = unpack(contiguous, {name: t.contiguous() for name, t in tensors.items()})
    other = torch.optim.AdamW(
        [{"params": model[0].parameters()}, {"params": model[1].parameters()}]
    )
    load_optimizer_state(model, other, stored)
    weight = model[0].weight
    assert other.state[weight]["exp_avg"].stride() == weight.stride()


def test_parts_that_differ_are_refused() -> None:
    state = TrainingState()
    state.add("model", dict, lambda _: None)
    with pytest.raises(CheckpointError, match=r"only: schedule\. Continue the run with"):
        state.restore(OrderedDict(model={}, schedule={}))


def deep(levels: int) -> Any:
    value: Any = {}
    for _ in range(levels):
        value = {"x": value}
    return value


@pytest.mark.parametrize(
    "plain",
    [
        {"$items": 5},
        {"$items": [5]},
        {"$items": [[1]]},
        {"$items": [[{}, 1]]},
        {"$tuple": 5},
        {"$tensor": []},
        {"$tensor": 5},
        pytest.param(deep(5000), id="deep"),
    ],
    ids=str,
)
def test_what_was_never_packed_is_refused(plain: Any) -> None:
    with pytest.raises(CheckpointError) as why:
        unpack(plain, {})
    assert not PYTHONS_WORDS.search(str(why.value))


@pytest.mark.parametrize("saved", [None, 5, [], {}, {"param_groups": 5}, {"state": {}}])
def test_a_part_that_does_not_take_what_was_saved_is_named(saved: Any) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    state = TrainingState()
    state.add("optimizer", dict, lambda value: load_optimizer_state(model, optimizer, value))
    with pytest.raises(CheckpointError, match="'optimizer' cannot be restored") as why:
        state.restore({"optimizer": saved})
    assert not PYTHONS_WORDS.search(str(why.value))


def test_weights_of_another_shape_are_refused() -> None:
    state = TrainingState()
    state.add("model", dict, nn.Linear(2, 2).load_state_dict)
    with pytest.raises(
        CheckpointError, match=r"(?s)'model' cannot be restored.*size mismatch.*begin a"
    ):
        state.restore({"model": nn.Linear(3, 3).state_dict()})
