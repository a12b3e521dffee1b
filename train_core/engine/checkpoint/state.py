"""All that the next step depends on, as tensors and JSON, and back again to the same bits.

A state is a nested structure of dicts, lists, tuples, numbers, strings and tensors. `pack`
splits it into plain JSON and named tensors; `unpack` is its exact inverse. Nothing is pickled.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn

from train_core.engine.distributed.fsdp import is_distributed
from train_core.errors import CheckpointError, EvertrainError, WorkloadError

_TENSOR, _TUPLE, _ITEMS = "$tensor", "$tuple", "$items"
_MARKS = {_TENSOR, _TUPLE, _ITEMS}
# What restoring another state than one's own raises, here and in torch.
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, RuntimeError)
_MENDED_BY = "Continue the run with the code that it began with, or begin a new one (init_from)"
_MOST_NAMED = 5
_log = logging.getLogger(__name__)


def _listed(names: Iterable[str]) -> str:
    """The first few names, for a message."""
    ordered = sorted(names)
    more = ", …" if len(ordered) > _MOST_NAMED else ""
    return ", ".join(ordered[:_MOST_NAMED]) + more


def pack(state: Any) -> tuple[Any, dict[str, Tensor]]:
    """The state as JSON, with each tensor replaced by its name, and the tensors by name.

    A tensor's name is its path, joined by `/`. Raises WorkloadError for a value that is neither
    a tensor nor plain data: it could only be pickled.
    """
    tensors: dict[str, Tensor] = {}

    def visit(value: Any, path: tuple[str, ...]) -> Any:
        if isinstance(value, Tensor):
            name = "/".join(path)
            if name in tensors:
                raise WorkloadError(
                    f"two tensors of the state have the same path {name!r}, as their keys are "
                    "joined by `/`: give one of these keys another name"
                )
            tensors[name] = value
            return {_TENSOR: name}
        if value is None or type(value) in (bool, int, float, str):
            return value
        if isinstance(value, tuple):
            return {_TUPLE: [visit(item, (*path, str(i))) for i, item in enumerate(value)]}
        if isinstance(value, list):
            return [visit(item, (*path, str(i))) for i, item in enumerate(value)]
        if isinstance(value, dict):
            if all(type(key) is str for key in value) and not _MARKS & value.keys():
                return {key: visit(item, (*path, key)) for key, item in value.items()}
            return {
                _ITEMS: [
                    [visit(key, (*path, "key")), visit(item, (*path, str(key)))]
                    for key, item in value.items()
                ]
            }
        raise WorkloadError(
            f"the state holds a {type(value).__name__} at {'/'.join(path) or 'its root'}: only "
            "tensors, numbers, strings, None, and dicts, lists and tuples of them can be saved"
        )

    return visit(state, ()), tensors


def unpack(plain: Any, tensors: dict[str, Tensor]) -> Any:
    """The state that `pack` split.

    Raises CheckpointError if a tensor is missing, or if `pack` cannot have given this.
    """

    def visit(value: Any) -> Any:
        if isinstance(value, list):
            return [visit(item) for item in value]
        if not isinstance(value, dict):
            return value
        if _TENSOR in value:
            if value[_TENSOR] not in tensors:
                raise CheckpointError(f"the checkpoint lacks the tensor {value[_TENSOR]!r}")
            return tensors[value[_TENSOR]]
        if _TUPLE in value:
            return tuple(visit(item) for item in value[_TUPLE])
        if _ITEMS in value:
            return {visit(key): visit(item) for key, item in value[_ITEMS]}
        return {key: visit(item) for key, item in value.items()}

    try:
        return visit(plain)
    except (TypeError, ValueError, RecursionError) as error:
        if isinstance(error, CheckpointError):
            raise
        raise CheckpointError(
            "the checkpoint's state is not as evertrain writes one: a part of it is missing, of "
            "another kind, or nested too deeply"
        ) from error


def optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's state dict with parameters called by their names, not by numbers."""
    names = _parameter_names(model, optimizer)
    state = optimizer.state_dict()
    return {
        "state": {names[index]: value for index, value in state["state"].items()},
        "param_groups": [
            {**group, "params": [names[index] for index in group["params"]]}
            for group in state["param_groups"]
        ],
    }


def load_optimizer_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]
) -> None:
    """Restore what `optimizer_state` gave. Raises CheckpointError if the parameters differ."""
    numbers = {name: index for index, name in _parameter_names(model, optimizer).items()}
    saved = {name for group in state["param_groups"] for name in group["params"]}
    if saved != numbers.keys():
        raise CheckpointError(
            "these parameters are in the optimizer or in the checkpoint only: "
            f"{_listed(saved ^ numbers.keys())}. {_MENDED_BY}"
        )
    optimizer.load_state_dict(
        {
            "state": {numbers[name]: value for name, value in state["state"].items()},
            "param_groups": [
                {**group, "params": [numbers[name] for name in group["params"]]}
                for group in state["param_groups"]
            ],
        }
    )
    for parameter, values in optimizer.state.items():
        for name, value in values.items():
            if isinstance(value, Tensor):
                values[name] = _own_state(parameter, value)


def _own_state(parameter: Tensor, value: Tensor) -> Tensor:
    """A parameter's state in memory of its own: what was loaded lies in that of a whole file."""
    if value.shape != parameter.shape:
        return value.clone()
    if is_distributed(parameter) and not is_distributed(value):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(value, parameter.device_mesh, parameter.placements)
    # Kernels walk a parameter and its state side by side: they need the same strides.
    return torch.empty_like(parameter, dtype=value.dtype).copy_(value)


def _parameter_names(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[int, str]:
    by_identity = {id(parameter): name for name, parameter in model.named_parameters()}
    ordered = [p for group in optimizer.param_groups for p in group["params"]]
    unknown = sum(id(parameter) not in by_identity for parameter in ordered)
    if unknown:
        raise WorkloadError(
            f"{unknown} of the optimizer's {len(ordered)} parameters are not the model's, so they "
            "have no names to be saved by: give it parameters of the model only"
        )
    return {index: by_identity[id(parameter)] for index, parameter in enumerate(ordered)}


class TrainingState:
    """The one state of a training: every part that the next step depends on, by name."""

    def __init__(self) -> None:
        self._parts: dict[str, tuple[Callable[[], Any], Callable[[Any], None]]] = {}
        self._optional: set[str] = set()

    def add(
        self,
        part: str,
        capture: Callable[[], Any],
        restore: Callable[[Any], None],
        *,
        is_optional: bool = False,
    ) -> None:
        """Add a part with what gives its state and what takes it.

        An optional part is saved only if it has a state, and restored only if that was saved.
        """
        self._parts[part] = (capture, restore)
        if is_optional:
            self._optional.add(part)

    def capture(self) -> dict[str, Any]:
        """The state of each part, sharing memory with the live tensors."""
        state = {part: capture() for part, (capture, _) in self._parts.items()}
        left_out = {part for part in self._optional if not state[part]}
        return {part: of_part for part, of_part in state.items() if part not in left_out}

    def restore(self, state: dict[str, Any]) -> None:
        """Give every part its state back.

        Raises CheckpointError if the parts differ, or if one does not take what was saved.
        """
        unlike = (state.keys() ^ self._parts.keys()) - (self._optional - state.keys())
        if unlike:
            raise CheckpointError(
                "these parts are in the training or in the checkpoint only: "
                f"{_listed(unlike)}. {_MENDED_BY}"
            )
        for part, (_, restore) in self._parts.items():
            if part not in state:
                continue
            try:
                restore(state[part])
            except _MALFORMED as error:
                # torch's own kinds of RuntimeError are of the device or of the network.
                is_other = isinstance(error, RuntimeError) and type(error) is not RuntimeError
                if is_other or isinstance(error, EvertrainError):
                    raise
                # Most of it is Python's words: for whoever knows the code.
                _log.info("%r cannot be restored", part, exc_info=True)
                raise CheckpointError(
                    f"{part!r} cannot be restored from the checkpoint: {_reason(error)}. "
                    f"{_MENDED_BY}"
                ) from error


def _reason(error: Exception) -> str:
    """Why a part does not take what was saved, as far as the error tells it in words."""
    if isinstance(error, KeyError) and error.args:
        return f"there is no {error.args[0]!r}"
    has_words = isinstance(error, (ValueError, RuntimeError)) and str(error)
    return str(error) if has_words else "what was saved has another form"
