"""What may change of a model while it is trained, and what may not.

A hook may freeze and thaw parameters, and set parts to evaluation or back: that is followed, and
is part of the state. Another parameter, type or group of the optimizer is refused at that step:
no checkpoint could be restored into the model that the workload makes.
"""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor, nn

from train_core.errors import WorkloadError
from train_core.rank.checkpoint.packing import first_difference, pack
from train_core.rank.distributed.buffers import modules_of
from train_core.rank.metrics.evaluation_loop import set_modes
from train_core.text.shown_text import few_of

_STEPS_WITH_BITS = 3
"""In so many steps of an attempt the sums of the parameters' bytes are compared, too.

torch does not count a change through `.data`, as a moving average of weights in `forward` does it.
"""


_Packed = tuple[str, dict[str, Tensor]]
"""A state as JSON, and its tensors."""


class Followed:
    """Compares a model and its optimizer with what they were a step before."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, *, may_change_in_forward: bool
    ) -> None:
        self._model = model
        self._optimizer = optimizer
        self._may_change_in_forward = may_change_in_forward
        self._parameters = dict(model.named_parameters())
        self._types = {name: p.dtype for name, p in self._parameters.items()}
        self._groups = self._groups_now()
        self._facts = self._facts_now()
        self._trained_at_first = self._trained()
        self._modes_at_first = self._modes()
        self._with_extra_state = {
            name: module
            for name, module in model.named_modules()
            if type(module).get_extra_state is not nn.Module.get_extra_state
        }
        self._extra_state: dict[str, _Packed] = {}
        self._versions: list[int] = []
        self._bits: list[int] = []
        self._steps_with_bits = 0 if may_change_in_forward else _STEPS_WITH_BITS

    def has_changed(self) -> bool:
        """Whether other parameters need a gradient than a step before.

        Raises WorkloadError for a change that is not followed.
        """
        self._versions, self._bits = self._versions_now(), self._bits_now()
        self._extra_state = self._extra_state_now()
        facts = self._facts_now()
        if facts == self._facts:
            return False
        self._refuse_others()
        self._facts = facts
        return True

    def check_unchanged(self) -> None:
        """Raise WorkloadError for what the step's passes changed and each shard would meet anew."""
        for name, state in self._extra_state_now().items():
            if not _is_same(state, self._extra_state[name]):
                whose = f"module {name!r}" if name else "the model"
                raise WorkloadError(
                    f"a forward or backward pass changed the extra state of {whose}, so that each "
                    "shard of a batch would meet another one: keep it in a buffer, of which those "
                    "of shard 0 are kept, change it in `after_step`, or train on one shard "
                    "(num_shards 1)"
                )
        versions, bits = self._versions_now(), self._bits_now()
        self._steps_with_bits = max(0, self._steps_with_bits - 1)
        if (versions, bits) == (self._versions, self._bits):
            return
        names = list(self._parameters)
        changed = {
            names[place]
            for before, now in ((self._versions, versions), (self._bits, bits))
            for place, pair in enumerate(zip(before, now, strict=True))
            if pair[0] != pair[1]
        }
        raise WorkloadError(
            f"a forward or backward pass changed {few_of(changed)} in place, so that each shard "
            "of a batch would meet other weights: change parameters in `after_step`, or train on "
            "one shard (num_shards 1)"
        )

    def capture(self) -> dict[str, dict[str, bool]]:
        """What is otherwise than `model()` made it; empty if nothing is.

        Raises WorkloadError for what could not be restored.
        """
        self._refuse_others()
        found = {
            "requires_grad": _changed(self._trained_at_first, self._trained()),
            "training": _changed(self._modes_at_first, self._modes()),
        }
        return {name: changed for name, changed in found.items() if changed}

    def restore(self, state: dict[str, Any]) -> None:
        """Set again what `capture` gave."""
        for name, needs_gradient in state.get("requires_grad", {}).items():
            self._parameters[name].requires_grad_(needs_gradient)
        modules = dict(self._model.named_modules())
        set_modes({modules[name]: mode for name, mode in state.get("training", {}).items()})

    def _facts_now(self) -> list[object]:
        """What the reducer's buckets and the optimizer's state are made for; quick to compare."""
        facts: list[object] = [
            (id(p), p.requires_grad, p.dtype)
            for module in modules_of(self._model)
            for p in module._parameters.values()  # noqa: SLF001 (named_parameters is slow)
            if p is not None
        ]
        facts.extend([id(p) for p in group["params"]] for group in self._optimizer.param_groups)
        return facts

    def _refuse_others(self) -> None:
        now = dict(self._model.named_parameters())
        other = [
            name
            for name in now.keys() | self._parameters.keys()
            if now.get(name) is not self._parameters.get(name)
        ]
        what, names = "are other parameters than", other
        if not other:
            names = [name for name, p in now.items() if p.dtype != self._types[name]]
            what = "are of another type than"
        if not names and (names := self._regrouped()):
            what = "are in other groups of the optimizer than"
        if names:
            raise WorkloadError(
                f"{few_of(names)} {what} before the first step: a checkpoint could not be "
                "restored into what `model` and `optimizer` make. Make them so from the beginning; "
                "which parameters need a gradient may change, and the optimizer may get a new group"
            )

    def _regrouped(self) -> list[str]:
        """The names of the parameters whose group is another one; a new group may have new ones."""
        was, now = self._groups, self._groups_now()
        names = {id(p): name for name, p in self._parameters.items()}
        num_groups = max(was.values(), default=-1) + 1
        return [
            names.get(key, "one of no module")
            for key in was.keys() | now.keys()
            if was.get(key) != now.get(key)
            and not (key not in was and key in names and now[key] >= num_groups)
        ]

    def _groups_now(self) -> dict[int, int]:
        """The number of the optimizer's group of each parameter."""
        groups = self._optimizer.param_groups
        return {id(p): number for number, group in enumerate(groups) for p in group["params"]}

    def _versions_now(self) -> list[int]:
        """How often each parameter was changed in place."""
        if self._may_change_in_forward:
            return []
        return [p._version for p in self._parameters.values()]  # noqa: SLF001 (nothing public counts)

    def _extra_state_now(self) -> dict[str, _Packed]:
        """A copy of what `get_extra_state` gives, by the module's name."""
        if self._may_change_in_forward:
            return {}
        return {
            name: _packed(one.get_extra_state()) for name, one in self._with_extra_state.items()
        }

    def _bits_now(self) -> list[int]:
        """The sum of each parameter's bytes, in the first steps."""
        if not self._steps_with_bits:
            return []
        with torch.no_grad():
            return [_sum_of_bytes(p) for p in self._parameters.values()]

    def _trained(self) -> dict[str, bool]:
        return {name: p.requires_grad for name, p in self._parameters.items()}

    def _modes(self) -> dict[str, bool]:
        return {name: module.training for name, module in self._model.named_modules()}


def _changed(before: dict[str, bool], now: dict[str, bool]) -> dict[str, bool]:
    return {name: value for name, value in now.items() if before.get(name) != value}


def _packed(state: Any) -> _Packed:
    plain, tensors = pack({"state": state})
    return json.dumps(plain, sort_keys=True), {
        name: one.detach().clone() for name, one in tensors.items()
    }


def _is_same(one: _Packed, other: _Packed) -> bool:
    # As JSON, NaN is the same as NaN.
    return one[0] == other[0] and not first_difference(one[1], other[1])


def _sum_of_bytes(parameter: nn.Parameter) -> int:
    flat = parameter.detach().reshape(-1).contiguous()
    return int(flat.view(torch.uint8).sum(dtype=torch.int64))
