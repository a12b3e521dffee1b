"""The weights that a new run takes from elsewhere (`init_from`), and how they are given to it.

They are found once, before the run exists; run.json then says which they were, by digest, so that
a run which is killed before its first checkpoint begins again with the very same.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Self

import torch
from torch import Tensor, nn

from train_core.config import TrainConfig
from train_core.errors import CheckpointError, ConfigError
from train_core.optimizers import CombinedOptimizer
from train_core.policy.checkpoints.layout import BUFFERS, MODEL, OPTIMIZER
from train_core.policy.logins import hide_logins
from train_core.rank.checkpoint.reader import (
    ModelState,
    load_model_file,
    load_state,
    read_buffer,
    read_model,
)
from train_core.rank.checkpoint.state import (
    load_model_state,
    load_optimizer_state,
    load_unsaved_buffers,
    model_state,
    optimizer_state,
    unsaved_buffers,
)
from train_core.storage.addresses import file_at, find_checkpoint
from train_core.storage.records.manifest import FileEntry
from train_core.storage.records.names import MODEL_FILE
from train_core.storage.records.run_record import Origin

_FILE = ".safetensors"
_log = logging.getLogger(__name__)
# How an optimizer computes: it changes no moment, and versions of torch have others of them.
_IMPLEMENTATION = {
    *("foreach", "fused", "capturable", "differentiable", "maximize", "decoupled_weight_decay"),
}


@dataclass(frozen=True)
class InitialState:
    """Weights, and an optimizer's state if it was asked for, read and verified."""

    uri: str
    allowed: tuple[str, ...]
    model: ModelState
    optimizer: dict[str, Any] | None

    @classmethod
    def read(cls, origin: Origin | None, config: TrainConfig) -> Self:
        """What run.json says that the run begins with.

        Raises ConfigError if it is gone, and CheckpointError if it is not what it was.
        """
        if origin is None:
            raise ConfigError(
                f"the run's run.json lacks the origin of init_from {config.init_from!r}: begin "
                "a new run"
            )
        if origin.uri.endswith(_FILE):
            found, optimizer = _read_file(origin), None
        else:
            found, optimizer = _read_checkpoint(origin, whole=config.init_from_optimizer)
        return cls(hide_logins(origin.uri), tuple(config.init_from_allow), found, optimizer)

    def give_weights(self, model: nn.Module) -> None:
        """Load the weights into a whole model. Raises ConfigError, listing what does not fit."""
        mine, given = model_state(model), self.model.weights
        fitting = {
            name: value
            for name, value in given.items()
            if name in mine and _form(mine[name]) == _form(value)
        }
        faults = [
            *(f"{name} is missing" for name in mine.keys() - given.keys()),
            *(f"{name} is unexpected" for name in given.keys() - mine.keys()),
            *(
                f"{name} is {_form(given[name])}, here {_form(mine[name])}"
                for name in mine.keys() & given.keys() - fitting.keys()
            ),
        ]
        self._refuse(f for f in faults if not self._allows(f.partition(" ")[0]))
        if not fitting:
            raise ConfigError(f"init_from: {self.uri} has no tensor that fits the model")
        load_model_state(model, mine | fitting)
        here = unsaved_buffers(model)
        load_unsaved_buffers(
            model,
            {
                name: value
                for name, value in self.model.buffers.items()
                if name in here and _form(here[name]) == _form(value)
            },
        )

    def give_optimizer(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """Load the optimizer's moments, if they were asked for. Raises ConfigError.

        Learning rates and all other options of its groups stay the new run's.
        """
        if self.optimizer is None:
            return
        groups = self.optimizer["param_groups"]
        parts = optimizer.optimizers if isinstance(optimizer, CombinedOptimizer) else (optimizer,)
        asked = set.intersection(*(set(one.defaults) for one in parts)) - _IMPLEMENTATION
        lacking = {name for name in asked if any(name not in group for group in groups)}
        if lacking:
            raise ConfigError(
                f"init_from: the optimizer of {self.uri} is no {type(optimizer).__name__}, it has "
                f"no {', '.join(sorted(lacking))}: leave out init_from_optimizer"
            )
        mine = optimizer_state(model, optimizer)
        trained_here = {name for group in mine["param_groups"] for name in group["params"]}
        trained_there = {name for group in groups for name in group["params"]}
        self._refuse(
            f"{name} is trained only {'here' if name in trained_here else 'there'}"
            for name in trained_here ^ trained_there
            if not self._allows(name)
        )
        shapes = {name: parameter.shape for name, parameter in model.named_parameters()}
        moments = {
            name: state
            for name, state in self.optimizer["state"].items()
            if name in trained_here and self.model.weights[name].shape == shapes[name]
        }
        load_optimizer_state(model, optimizer, mine | {"state": moments})

    def _allows(self, name: str) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in self.allowed)

    def _refuse(self, faults: Iterable[str]) -> None:
        listed = sorted(faults)
        if listed:
            raise ConfigError(
                f"init_from: {self.uri} does not fit the model: {'; '.join(listed)}. Name those "
                "that may differ in init_from_allow"
            )


def fitted_with(origin: Origin, workload: str) -> bytes | None:
    """What was fitted for the weights of a run of the workload; None: nothing, or of no such run.

    Another workload's is of no use here, which is logged.
    """
    if origin.uri.endswith(_FILE):
        return None
    folder, _ = find_checkpoint(origin.uri, "")
    record = folder.record()
    if record.fitted is not None and record.config.workload != workload:
        _log.warning(
            "what was fitted for the first weights is left out, as their run %r is one of %s: "
            "it is fitted anew",
            folder.name,
            record.config.workload,
        )
        return None
    return folder.fitted_of(record)


def _form(value: Any) -> Any:
    """The shape of a tensor; of a module's extra state only that it is one."""
    return tuple(value.shape) if isinstance(value, Tensor) else "an extra state"


def _read_file(origin: Origin) -> ModelState:
    store, key = file_at(origin.uri)
    try:
        size_bytes = store.size_bytes(key)
    except FileNotFoundError as error:
        raise ConfigError(f"{error}: the run begins with these weights: bring them back") from error
    entry = FileEntry(name=MODEL_FILE, size_bytes=size_bytes, digest=origin.digest)
    try:
        buffer = read_buffer(store, key, entry)
    except CheckpointError as error:
        raise _other_weights(origin) from error
    return load_model_file(buffer, origin.uri)


def _read_checkpoint(origin: Origin, *, whole: bool) -> tuple[ModelState, dict[str, Any] | None]:
    folder, checkpoint = find_checkpoint(origin.uri, "")
    if checkpoint.digest != origin.digest:
        raise _other_weights(origin)
    if not whole:
        return read_model(folder.store, checkpoint), None
    state = load_state(folder.store, checkpoint)
    return ModelState(state[MODEL], state.get(BUFFERS, {})), state[OPTIMIZER]


def _other_weights(origin: Origin) -> CheckpointError:
    return CheckpointError(
        f"{hide_logins(origin.uri)} is not what the run was begun with, whose digest was "
        f"{origin.digest}: bring it back, or begin a new run"
    )
