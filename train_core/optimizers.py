"""Several optimizers as one, as a generator's and a discriminator's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer

from train_core.errors import WorkloadError


class CombinedOptimizer(Optimizer):
    """Steps several optimizers, each of which trains other parameters, one after the other.

    It has their parameter groups and their state, and they have no others: a schedule changes the
    rates of all of them, and a checkpoint restores all of them exactly. Raises WorkloadError for
    one that keeps its state in another way than torch's optimizers, and ValueError if two train
    the same parameter.
    """

    def __init__(self, *given: Optimizer) -> None:
        optimizers = tuple(
            part
            for one in given
            for part in (one.optimizers if isinstance(one, CombinedOptimizer) else (one,))
        )
        for one in optimizers:
            kind = type(one)
            if (kind.state_dict, kind.load_state_dict) != (
                Optimizer.state_dict,
                Optimizer.load_state_dict,
            ):
                raise WorkloadError(
                    f"{kind.__name__} has a state_dict() of its own, so that it cannot be one of "
                    "several: give optimizers whose state is in `state` and `param_groups`"
                )
        self.optimizers: tuple[Optimizer, ...] = ()
        super().__init__([group for one in optimizers for group in one.param_groups], {})
        for one in optimizers:
            self.state.update(one.state)
        self.optimizers = optimizers
        self._share()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Raise WorkloadError: it is not known which optimizer is to have the group."""
        if self.optimizers:
            raise WorkloadError(
                "a CombinedOptimizer takes no group later: add it to one of the optimizers before "
                "they are combined"
            )
        super().add_param_group(param_group)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "optimizers": self.optimizers}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._share()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]  # torch has two overloads
        """Step each optimizer, in the order in which they were given."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for one in self.optimizers:
            one.step()
        return loss

    def _share(self) -> None:
        """Give the optimizers their groups, and the state, which loading replaced."""
        first = 0
        for one in self.optimizers:
            end = first + len(one.param_groups)
            one.param_groups, one.state = self.param_groups[first:end], self.state
            first = end
