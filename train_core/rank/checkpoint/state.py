"""All that the next step depends on, by parts: each is captured, and restored as it was."""

from __future__ import annotations

import logging
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from train_core.errors import CheckpointError, EvertrainError, WorkloadError
from train_core.policy.checkpoints.layout import MODEL
from train_core.rank.checkpoint.packing import first_difference, retyped
from train_core.rank.distributed.fsdp import is_distributed
from train_core.text.shown_text import few_of

# What restoring another state than one's own raises, here and in torch.
_MALFORMED = (LookupError, TypeError, ValueError, AttributeError, RuntimeError)
_MENDED_BY = "Continue the run with the code that it began with, or begin a new one (init_from)"
EXTRA_STATE = "_extra_state"
_log = logging.getLogger(__name__)


def model_state(model: nn.Module) -> dict[str, Any]:
    """The model's parameters, persistent buffers and extra states, by name."""
    return dict(model.state_dict())


def load_model_state(model: nn.Module, state: dict[str, Any]) -> None:
    """Restore what `model_state` gave. Raises RuntimeError, in torch's words, if that differs."""
    # A module may keep its extra state, and torch copies all else: what was loaded lies in the
    # memory of a whole file.
    found: OrderedDict[str, Any] = OrderedDict(
        (name, deepcopy(value) if name.endswith(EXTRA_STATE) else value)
        for name, value in state.items()
    )
    # The versions of the modules' formats: without them a module takes its state for an older one.
    found._metadata = getattr(model.state_dict(), "_metadata", {})  # type: ignore[attr-defined] # noqa: SLF001
    _reshape_buffers(model, found)
    model.load_state_dict(found)


def _reshape_buffers(model: nn.Module, saved: Mapping[str, Any]) -> None:
    """Give the buffers that training made in another shape or type that of the saved ones."""
    for path, module in model.named_modules():
        for own, current in module._buffers.items():  # noqa: SLF001 (nn.Module has no other way)
            value = saved.get(f"{path}.{own}" if path else own)
            if isinstance(value, Tensor) and (
                current is None or (current.shape, current.dtype) != (value.shape, value.dtype)
            ):
                device = current.device if current is not None else _device_of(model, value)
                module._buffers[own] = torch.empty_like(value, device=device)  # noqa: SLF001


def parameter_paths(model: nn.Module) -> set[str]:
    """The paths, in the state, of the model's parameters."""
    return {f"{MODEL}/{name}" for name, _ in model.named_parameters(remove_duplicate=False)}


def frozen_paths(model: nn.Module) -> set[str]:
    """The paths, in the state, of the weights that are not trained."""
    named = model.named_parameters()
    return {f"{MODEL}/{name}" for name, parameter in named if not parameter.requires_grad}


def unsaved_buffers(model: nn.Module) -> dict[str, Tensor]:
    """The buffers that the model's own state leaves out (`persistent=False`), by name."""
    return {f"{prefix}{name}": buffer for _, prefix, name, buffer in _unsaved(model)}


def load_unsaved_buffers(model: nn.Module, saved: dict[str, Tensor]) -> None:
    """Restore what `unsaved_buffers` gave, also buffers that training registered."""
    for name, value in saved.items():
        path, _, own = name.rpartition(".")
        module = model.get_submodule(path)
        current = module._buffers.get(own)  # noqa: SLF001 (nn.Module has no other way to it)
        if current is None:
            device = _device_of(model, value)
            module.register_buffer(own, value.to(device, copy=True), persistent=False)
        elif current.shape == value.shape and current.dtype == value.dtype:
            with torch.no_grad():
                current.copy_(value)
        else:
            setattr(module, own, value.to(current.device, copy=True))


def _device_of(model: nn.Module, otherwise: Tensor) -> torch.device:
    return next((one.device for one in model.parameters()), otherwise.device)


def _unsaved(model: nn.Module) -> Iterator[tuple[nn.Module, str, str, Tensor]]:
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for name in sorted(module._non_persistent_buffers_set):  # noqa: SLF001 (as above)
            buffer = module._buffers.get(name)  # noqa: SLF001
            if buffer is not None:
                yield module, prefix, name, buffer


_KNOWN = {"state", "param_groups"}


def optimizer_state(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The optimizer's state dict with parameters called by their names, not by numbers.

    `shared` is its state that is no parameter's, and `more` what else its state dict has; both are
    left out if there is none. Raises WorkloadError if the optimizer has others' parameters.
    """
    names = _parameter_names(model, optimizer)
    state = optimizer.state_dict()
    found = {
        "state": {names[k]: value for k, value in state["state"].items() if k in names},
        "param_groups": [
            {**group, "params": [names[index] for index in group["params"]]}
            for group in state["param_groups"]
        ],
    }
    if shared := {key: value for key, value in state["state"].items() if key not in names}:
        found["shared"] = shared
    if more := {key: value for key, value in state.items() if key not in _KNOWN}:
        found["more"] = more
    return found


def load_optimizer_state(
    model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]
) -> None:
    """Restore what `optimizer_state` gave, groups that were added later too, with all its types.

    Raises CheckpointError if the parameters differ.
    """
    _add_groups(model, optimizer, state["param_groups"])
    names = _parameter_names(model, optimizer)
    numbers = {name: index for index, name in names.items()}
    saved = {name for group in state["param_groups"] for name in group["params"]}
    if saved != numbers.keys():
        raise CheckpointError(
            "these parameters are in the optimizer or in the checkpoint only: "
            f"{few_of(saved ^ numbers.keys())}. {_MENDED_BY}"
        )
    of_parameters = {numbers[name]: value for name, value in state["state"].items()}
    # Code of a user's gets copies: `Generator.set_state` reads a file's memory from its beginning.
    given = of_parameters | state.get("shared", {})
    optimizer.load_state_dict(
        {
            "state": {} if _loads_as_torch(optimizer) else _own(None, given),
            "param_groups": [
                {**group, "params": [numbers[name] for name in group["params"]]}
                for group in state["param_groups"]
            ],
            **_own(None, state.get("more", {})),
        }
    )
    _own_states(model, optimizer, state)


def _own_states(model: nn.Module, optimizer: torch.optim.Optimizer, saved: dict[str, Any]) -> None:
    """Give the optimizer its state in memory of its own: what was loaded lies in a whole file's."""
    by_identity = {id(parameter): name for name, parameter in model.named_parameters()}
    if not _loads_as_torch(optimizer):
        for parameter, values in optimizer.state.items():
            of_saved = saved["state"].get(by_identity.get(id(parameter), ""), {})
            for key, value in values.items():
                if isinstance(value, Tensor):
                    values[key] = _own_tensor(parameter, value)
                else:
                    values[key] = _with_lengths(value, of_saved.get(key))
        return
    for group in optimizer.param_groups:
        counts_on_host = not (group.get("capturable") or group.get("fused"))
        for parameter in group["params"]:
            values = saved["state"].get(by_identity[id(parameter)])
            if values is not None:
                kept = {"step"} if counts_on_host else set()
                optimizer.state[parameter] = {
                    key: _own(None if key in kept else parameter, value)
                    for key, value in values.items()
                }
    for key, value in saved.get("shared", {}).items():
        optimizer.state[key] = _own(None, value)


def _with_lengths(value: Any, saved: Any) -> Any:
    """The value, whose deques torch has made anew from their elements, with their `maxlen`."""
    if isinstance(value, deque) and isinstance(saved, deque):
        return deque(value, saved.maxlen)
    if type(value) is dict and isinstance(saved, dict):
        return {key: _with_lengths(item, saved.get(key)) for key, item in value.items()}
    return value


def _loads_as_torch(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer takes its state as torch's own optimizers do, and no code changes it.

    torch casts it to the types of the parameters: fp32 weights beside bf16 ones would be rounded.
    """
    loads = type(optimizer).load_state_dict is torch.optim.Optimizer.load_state_dict
    if not loads:
        # A wrapper that delegates to another optimizer need not have torch's attributes.
        return False
    hooks = (
        optimizer._optimizer_load_state_dict_pre_hooks,  # noqa: SLF001 (there is no other way)
        optimizer._optimizer_load_state_dict_post_hooks,  # noqa: SLF001
    )
    return not any(hooks)


def _add_groups(
    model: nn.Module, optimizer: torch.optim.Optimizer, saved: list[dict[str, Any]]
) -> None:
    """Add the groups that the optimizer got while it trained."""
    known = {id(one) for group in optimizer.param_groups for one in group["params"]}
    named = {name: one for name, one in model.named_parameters() if id(one) not in known}
    for group in saved[len(optimizer.param_groups) :]:
        if named.keys() >= set(group["params"]):
            optimizer.add_param_group(
                {**group, "params": [named[name] for name in group["params"]]}
            )


def _own(parameter: Tensor | None, value: Any) -> Any:
    """A copy of a state; with a parameter, its tensors are on the parameter's device."""
    if isinstance(value, Tensor):
        if parameter is None or value.shape != parameter.shape:
            return value.clone() if parameter is None else value.to(parameter.device, copy=True)
        return _own_tensor(parameter, value)
    if isinstance(value, dict):
        return retyped({key: _own(parameter, item) for key, item in value.items()}, value)
    if isinstance(value, deque):
        return deque((_own(parameter, item) for item in value), value.maxlen)
    if isinstance(value, (list, tuple)):
        items = [_own(parameter, item) for item in value]
        return retyped(items if isinstance(value, list) else tuple(items), value)
    return value


def _own_tensor(parameter: Tensor, value: Tensor) -> Tensor:
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
            "have no names to be saved by: make those of a loss parameters of a module of the "
            "model, whose `forward` may return them beside its outputs"
        )
    return {index: by_identity[id(parameter)] for index, parameter in enumerate(ordered)}


@dataclass(frozen=True)
class _Part:
    capture: Callable[[], Any]
    restore: Callable[[Any], None]
    is_exact: bool
    is_optional: bool


class TrainingState:
    """The one state of a training: every part that the next step depends on, by name."""

    def __init__(self) -> None:
        self._parts: dict[str, _Part] = {}

    def add(
        self,
        part: str,
        capture: Callable[[], Any],
        restore: Callable[[Any], None],
        *,
        is_exact: bool = False,
        is_optional: bool = False,
    ) -> None:
        """Add a part with what gives its state and what takes it.

        `is_exact`: once restored, it gives the very state that was saved, or is refused.
        `is_optional`: an empty state is not saved.
        """
        self._parts[part] = _Part(capture, restore, is_exact, is_optional)

    def capture(self, leaving_out: Collection[str] = ()) -> dict[str, Any]:
        """The state of each part, sharing memory with the live tensors."""
        found = {
            name: part.capture() for name, part in self._parts.items() if name not in leaving_out
        }
        return {
            name: one for name, one in found.items() if one or not self._parts[name].is_optional
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Give every part its state back.

        Raises CheckpointError if the parts differ, or if one does not take what was saved.
        """
        needed = {name for name, part in self._parts.items() if not part.is_optional}
        if odd := (needed - state.keys()) | (state.keys() - self._parts.keys()):
            raise CheckpointError(
                "these parts are in the training or in the checkpoint only: "
                f"{few_of(odd)}. {_MENDED_BY}"
            )
        for name, part in self._parts.items():
            if name in state:
                self._restore(name, part, state[name])

    def _restore(self, name: str, part: _Part, saved: Any) -> None:
        try:
            part.restore(saved)
            said = first_difference(saved, part.capture()) if part.is_exact else ""
        except _MALFORMED as error:
            # torch's own kinds of RuntimeError are of the device or of the network.
            is_other = isinstance(error, RuntimeError) and type(error) is not RuntimeError
            if is_other or isinstance(error, EvertrainError):
                raise
            # Most of it is Python's words: for whoever knows the code.
            _log.info("%r cannot be restored", name, exc_info=True)
            raise CheckpointError(
                f"{name!r} cannot be restored from the checkpoint: {_reason(error)}. {_MENDED_BY}"
            ) from error
        if said:
            raise CheckpointError(
                f"{name!r} is not what was saved once it is restored: {said}. Its load_state_dict "
                "has to take all that its state_dict gives"
            )


def _reason(error: Exception) -> str:
    """Why a part does not take what was saved, as far as the error tells it in words."""
    if isinstance(error, KeyError) and error.args:
        return f"there is no {error.args[0]!r}"
    has_words = isinstance(error, (ValueError, RuntimeError)) and str(error)
    return str(error) if has_words else "what was saved has another form"
