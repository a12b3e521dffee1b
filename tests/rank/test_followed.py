"""Extra state of modules: a pass may not change it on several shards, a hook may."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from train_core.errors import WorkloadError
from train_core.rank.followed import Followed


class Keeping(nn.Module):
    """A module with a state of its own."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 1)
        self.state = state

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.linear(x)
        return out

    def get_extra_state(self) -> Any:
        return self.state

    def set_extra_state(self, state: Any) -> None:
        self.state = state


def followed(model: nn.Module) -> Followed:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    made = Followed(model, optimizer, may_change_in_forward=False)
    assert not made.has_changed()
    return made


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"seen": {}}, {"seen": {3: 1}}),
        ({"seen": {3: 1}}, {"seen": {}}),
        ([1], [1, 2]),
        (0, 1),
        (torch.zeros(2), torch.ones(2)),
        (np.float32(0), np.float32(1)),
    ],
    ids=["added", "removed", "appended", "number", "tensor", "scalar"],
)
def test_a_change_in_a_pass_is_refused_by_the_modules_name(before: Any, after: Any) -> None:
    for model, whose in (
        (Keeping(before), "of the model,"),
        (nn.Sequential(Keeping(before)), "of module '0',"),
    ):
        keeping = model if isinstance(model, Keeping) else model[0]
        made = followed(model)
        keeping.state = after
        with pytest.raises(WorkloadError, match=f"changed the extra state {whose}"):
            made.check_unchanged()


def test_a_change_in_place_is_refused() -> None:
    model = Keeping({"seen": [torch.zeros(2)]})
    made = followed(model)
    model.state["seen"][0].add_(1)
    with pytest.raises(WorkloadError, match="changed the extra state of the model,"):
        made.check_unchanged()


@pytest.mark.parametrize(
    "state",
    [float("nan"), np.float32("nan"), torch.tensor([torch.nan])],
    ids=["float", "numpy", "torch"],
)
def test_what_is_no_number_is_the_same_as_itself(state: Any) -> None:
    followed(Keeping(state)).check_unchanged()


def test_a_hook_may_leave_there_what_was_computed_with_a_gradient() -> None:
    model = Keeping(torch.zeros(()))
    made = followed(model)
    model.state = model.linear.weight.mean()
    assert model.state.requires_grad
    assert not made.has_changed()
    made.check_unchanged()


def test_the_values_of_a_parameter_may_lie_apart() -> None:
    model = Keeping(0)
    model.linear.weight = nn.Parameter(torch.arange(8.0)[::4][None])
    assert model.linear.weight.stride(1) == 4
    made = followed(model)
    made.check_unchanged()
    model.linear.weight.data[0, 1] = 0
    with pytest.raises(WorkloadError, match=r"changed 'linear\.weight' in place"):
        made.check_unchanged()
