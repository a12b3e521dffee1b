"""Predictors: what makes a callable of a folder that a training function reported.

A predictor is a function of the folder, named by the parameter `predictor`; the folder may be gone
when it has returned. The ones here cover what most functions report:

>>> from train_core import predictors
>>> def predictor(folder):
...     return predictors.from_state_dict(folder / "model.pt", Net())  # doctest: +SKIP

The files of a training function may hold pickles, which run any code when they are read. So they
are read as tensors and plain values only, unless the run was begun with `trust_pickle`.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import nn

from train_core.errors import WorkloadError

_is_trusted: ContextVar[bool] = ContextVar("trust_pickle", default=False)


def read(path: Path) -> Any:
    """What `torch.save` has written into the file, on the CPU.

    Raises WorkloadError if it holds more than tensors and plain values, and the run does not trust
    pickles.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=not _is_trusted.get())
    except pickle.UnpicklingError as error:
        raise WorkloadError(
            f"{path} holds more than tensors and plain values: {str(error).splitlines()[0]}. "
            "Report a state dict, or run with trust_pickle, which lets the file run any code"
        ) from error


def from_state_dict(path: Path, model: nn.Module) -> nn.Module:
    """The model with the weights in the file: a state dict that `torch.save` has written.

    Raises WorkloadError if the file is not to be read, or does not fit the model.
    """
    return _with_weights(model, read(path), path)


def from_lightning(path: Path, module: nn.Module) -> nn.Module:
    """The LightningModule with the weights in the file: Lightning's checkpoint.ckpt.

    Raises WorkloadError as `from_state_dict`.
    """
    found = read(path)
    if not isinstance(found, dict) or "state_dict" not in found:
        raise WorkloadError(f"{path} is no checkpoint of Lightning: it has no state_dict")
    return _with_weights(module, found["state_dict"], path)


def from_transformers(folder: Path, kind: Any) -> nn.Module:
    """The model that `save_pretrained` has written into the folder, of a class of Transformers.

    Only safetensors are read. Its outputs are those of the class: the workload's `forward` says
    what it is called with.
    """
    model: nn.Module = kind.from_pretrained(folder, use_safetensors=True, local_files_only=True)
    return model


def apply(predictor: Callable[[Path], object], folder: Path, *, is_trusted: bool) -> nn.Module:
    """What the predictor makes of the folder, as a module; it may read pickles if `is_trusted`.

    Raises WorkloadError if it cannot be called.
    """
    with _trusting_pickle(is_trusted=is_trusted):
        made = predictor(folder)
    if isinstance(made, nn.Module):
        return made
    if not callable(made):
        raise WorkloadError(
            f"the predictor made {type(made).__name__}, and nothing that can be called"
        )
    return _Called(made)


class _Called(nn.Module):
    """A callable that has no weights, as far as is known."""

    def __init__(self, call: Callable[..., Any]) -> None:
        super().__init__()
        self._call = call

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self._call(*inputs, **named)


@contextmanager
def _trusting_pickle(*, is_trusted: bool) -> Iterator[None]:
    """Let `read` in the block read pickles, or not."""
    token = _is_trusted.set(is_trusted)
    try:
        yield
    finally:
        _is_trusted.reset(token)


def _with_weights(model: nn.Module, weights: Any, path: Path) -> nn.Module:
    try:
        model.load_state_dict(weights)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise WorkloadError(f"{path} does not fit {type(model).__name__}: {error}") from error
    return model
