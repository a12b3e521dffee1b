"""A state goes through JSON and tensors and comes back the same."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict, deque, namedtuple
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.words import PYTHONS_WORDS
from train_core.errors import CheckpointError, WorkloadError
from train_core.rank.checkpoint.packing import first_difference, pack, retyped, unpack
from train_core.rank.checkpoint.reader import Assembly
from train_core.rank.checkpoint.state import TrainingState, load_optimizer_state, optimizer_state

Point = namedtuple("Point", "x y")  # noqa: PYI024 (as users write them)

numbers = st.floats(allow_nan=False) | st.integers() | st.booleans() | st.none() | st.text()
others = (
    st.binary(max_size=9)
    | st.complex_numbers(allow_nan=False)
    | st.sampled_from([torch.bfloat16, torch.device("cpu"), torch.Size([2, 3]), np.bool_(1)])
    | st.floats(width=32, allow_nan=False).map(np.float32)
    | st.floats(allow_nan=False).map(np.float64)
    | st.complex_numbers(allow_nan=False).map(np.complex128)
    | st.text(max_size=5).map(np.str_)
    | st.integers(-128, 127).map(np.int8)
    | st.lists(st.integers(0, 2**63), max_size=3).map(lambda items: np.array(items, np.uint64))
    | st.frozensets(st.integers(), max_size=3)
    | st.sets(st.text(max_size=3), max_size=3)
    | st.dictionaries(st.text(max_size=3) | st.integers(), st.integers(), max_size=3).map(Counter)
)


def mappings(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[Any, Any]]:
    keys = st.text(alphabet="ab$", max_size=7) | st.integers() | st.just("$type")
    return st.dictionaries(keys, inner, max_size=3)


states = st.recursive(
    numbers | others | st.builds(torch.arange, st.integers(0, 3)),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.lists(inner, max_size=3).map(lambda items: deque(items, 4))
        | st.builds(Point, inner, inner)
        | mappings(inner)
        | mappings(inner).map(OrderedDict)
        | mappings(inner).map(lambda items: defaultdict(list, items))
    ),
    max_leaves=12,
)


def same(left: Any, right: Any) -> bool:
    if isinstance(left, torch.Tensor):
        return isinstance(right, torch.Tensor) and torch.equal(left, right)
    if isinstance(left, np.ndarray):
        return bool(left.dtype == right.dtype and left.tolist() == right.tolist())
    if isinstance(left, Point):
        # Its class is made anew, as nothing that is read is imported.
        return left._fields == right._fields and all(map(same, left, right))
    if isinstance(left, dict):
        is_alike = type(left) is type(right) and list(left) == list(right)
        return is_alike and all(same(left[key], right[key]) for key in left)
    if isinstance(left, deque) and left.maxlen != right.maxlen:
        return False
    if isinstance(left, list | tuple | deque):
        return type(left) is type(right) and len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


@example(np.str_("\x00"))
@given(states)
def test_any_state_survives_json_and_tensors(state: Any) -> None:
    plain, tensors = pack(state)
    assert same(state, unpack(json.loads(json.dumps(plain)), tensors))
    assert first_difference(state, state) == ""


PLACED = {
    "workload/average": "meta",
    "workload/counted": "cpu",
    "model/weight": "cpu",
    "model/scale._extra_state/mean": "meta",
    "optimizer/state/weight/exp_avg": "cpu",
    "optimizer/shared/total": "meta",
    "streams/0/position": "cpu",
}


def test_what_users_code_keeps_lies_where_the_training_is_unless_it_lay_in_main_memory() -> None:
    assembly = Assembly(device=torch.device("meta"))
    plain: dict[str, Any] = {path: {"$tensor": path} for path in PLACED}
    plain["workload/counted"]["host"] = True
    assembly._plain = plain
    assembly._whole = {path: torch.ones(2) for path in PLACED}
    assert {path: one.device.type for path, one in assembly.state().items()} == PLACED


def test_a_device_that_has_no_memory_is_no_damage_of_the_checkpoint() -> None:
    def place(name: str, tensor: Tensor) -> Tensor:
        raise torch.OutOfMemoryError(name)

    with pytest.raises(torch.OutOfMemoryError):
        unpack({"a": {"$tensor": "a"}}, {"a": torch.ones(2)}, place)


@pytest.mark.parametrize("hostile", [{"$tensor": "x"}, {"$tuple": [1]}, {"$items": []}])
def test_a_state_that_looks_like_a_mark_is_not_one(hostile: dict[str, Any]) -> None:
    plain, tensors = pack(hostile)
    assert unpack(plain, tensors) == hostile


def test_what_could_only_be_pickled_is_refused_with_its_place() -> None:
    class Milestones(set[int]):
        """A class that nobody else knows."""

    with pytest.raises(WorkloadError, match="holds a Milestones at schedule/milestones"):
        pack({"schedule": {"milestones": Milestones([1, 2])}})


@pytest.mark.parametrize(
    "value",
    [
        defaultdict(lambda: 3),
        torch.max(torch.ones(2, 2), 0),
        np.datetime64("2026-01-01"),
        np.array(["text"], object),
        torch.eye(2).to_sparse(),
        torch.empty(2, device="meta"),
    ],
    ids=lambda one: type(one).__name__,
)
def test_what_would_come_back_as_something_else_is_refused(value: Any) -> None:
    with pytest.raises(WorkloadError, match="at workload/it"):
        pack({"workload": {"it": value}})


def test_a_state_of_an_earlier_evertrain_gets_the_types_that_it_had() -> None:
    live = {"milestones": Counter({2: 1}), "point": Point(0, torch.Size([1])), "new": 1}
    saved = {"milestones": {3: 1}, "point": (4, (2,)), "steps": [1]}
    expected = {"milestones": Counter({3: 1}), "point": Point(4, torch.Size([2])), "steps": [1]}
    assert same(retyped(saved, live), expected)


def test_the_first_value_that_differs_is_named() -> None:
    saved = {"a": [1, {"b": torch.ones(2)}], "nan": math.nan}

    class Own:
        def __init__(self, value: torch.Tensor) -> None:
            self.value = value

        def __eq__(self, other: object) -> bool:
            return bool(self.value == other)

        __hash__ = None  # type: ignore[assignment]  # as dataclasses that are compared

    of_objects = {"p": Own(torch.ones(2))}
    assert not first_difference(of_objects, {"p": Own(torch.ones(2))})
    different = first_difference(of_objects, {"p": Own(torch.zeros(2))})
    assert different == "p.value: other values"
    assert not first_difference(saved, {"a": [1, {"b": torch.ones(2)}], "nan": math.nan})
    assert first_difference(saved, {"a": [1, {"b": torch.zeros(2)}], "nan": 0}).startswith("a/1/b")
    wide = {"a": [1, {"b": torch.ones(2, dtype=torch.float64)}], "nan": math.nan}
    assert first_difference(saved, wide).startswith("a/1/b")
    assert "no 'nan'" in first_difference(saved, {"a": saved["a"]})


def test_an_optimizer_that_loses_its_state_is_refused() -> None:
    class Forgetful(torch.optim.AdamW):
        def load_state_dict(self, state_dict: Any) -> None:
            super().load_state_dict(state_dict | {"state": {}})

    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    saved = optimizer_state(model, trained_optimizer(model))
    optimizer = Forgetful(
        [{"params": model[0].parameters()}, {"params": model[1].parameters(), "weight_decay": 0.0}]
    )
    state = TrainingState()
    state.add(
        "optimizer",
        lambda: optimizer_state(model, optimizer),
        lambda value: load_optimizer_state(model, optimizer, value),
        is_exact=True,
    )
    with pytest.raises(CheckpointError, match=r"'optimizer' is not what was saved .* no '0\.bias'"):
        state.restore({"optimizer": saved})


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


class Windowed(torch.optim.SGD):
    """Draws from a generator of its own, and keeps a window of each parameter's last norms."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, lr=0.1)
        self.generator = torch.Generator().manual_seed(7)

    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                window = self.state[parameter].setdefault("window", deque(maxlen=2))
                window.append(parameter.norm())
                parameter.data.add_(torch.rand(1, generator=self.generator))

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "generator": self.generator.get_state()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        state_dict = dict(state_dict)
        self.generator.set_state(state_dict.pop("generator"))
        super().load_state_dict(state_dict)


def test_generators_and_windows_of_an_optimizer_of_ones_own_come_back() -> None:
    def made() -> tuple[nn.Module, Windowed]:
        torch.manual_seed(0)
        model = nn.Linear(3, 2)
        return model, Windowed(model.parameters())

    model, optimizer = made()
    for _ in range(3):
        optimizer.step()
    state = optimizer_state(model, optimizer)
    plain, tensors = pack(state)
    # As from a file, whose memory all tensors share, at any offset.
    file = torch.cat([torch.zeros(8, dtype=torch.uint8), *map(bytes_of, tensors.values())])
    begin, views = 8, {}
    for name, tensor in tensors.items():
        part = file[begin : begin + tensor.nbytes]
        begin += tensor.nbytes
        views[name] = part.view(tensor.dtype).view(tensor.shape)
    other_model, other = made()
    load_optimizer_state(other_model, other, unpack(plain, views))
    assert not first_difference(state, optimizer_state(other_model, other))
    with torch.no_grad():
        other_model.load_state_dict(model.state_dict())
    for one in (optimizer, other):
        one.step()
    assert torch.equal(model.weight, other_model.weight)  # type: ignore[arg-type]  # it is a Linear
    assert [len(values["window"]) for values in other.state.values()] == [2, 2]


def bytes_of(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().contiguous().reshape(-1).view(torch.uint8)


def test_a_window_of_another_length_is_another_state() -> None:
    assert first_difference({"w": deque([1], 3)}, {"w": deque([1])}, path="x").startswith(
        "x/w: a d"
    )


def test_optimizer_of_another_model_is_refused() -> None:
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    state = optimizer_state(model, trained_optimizer(model))
    larger = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1), nn.Linear(1, 1))
    mended_by = "Continue the run with the code that it began with, or begin a new one"
    with pytest.raises(CheckpointError, match=rf"only: '2\.bias', '2\.weight'. {mended_by}"):
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
    with pytest.raises(CheckpointError, match=r"only: 'schedule'\. Continue the run with"):
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
        {"$type": 5},
        {"$type": ["no such type", 1]},
        {"$type": ["defaultdict", ["eval", {}]]},
        {"$type": ["namedtuple", ["A(", ["x"], [1]]]},
        {"$type": ["namedtuple", ["A", ["x"], [1, 2]]]},
        {"$type": ["numpy", ["<M8[s]", 5]]},
        {"$type": ["numpy", ["|i1", 500]]},
        {"$type": ["array", [1]]},
        {"$type": ["bytes", "?"]},
        {"$type": ["dtype", "save"]},
        {"$type": ["device", "nowhere"]},
        {"$type": ["set", [[1]]]},
        {"$type": ["Size", "a"]},
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
