"""The models that the rows of the table are made of."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from tests.pytorch.case import NUM_CLASSES, NUM_INPUTS


class Plain(nn.Module):
    """Two layers, of which the rows with another optimizer or schedule are made."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(NUM_INPUTS, 8)
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.2)
        self.last = nn.Linear(8, NUM_CLASSES)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.last(self.drop(self.norm(self.first(x)).relu()))


class OnInputs(nn.Module):
    """A layer between two linear ones: it is fed with inputs of the shape that it needs."""

    def __init__(
        self, layer: nn.Module, *shape: int, call: Callable[[nn.Module, Tensor], Any] | None = None
    ) -> None:
        super().__init__()
        self.shape = shape or (NUM_INPUTS,)
        self.first = nn.Linear(NUM_INPUTS, prod(self.shape))
        self.layer = layer
        self.call = call or (lambda module, x: module(x))
        was_training = layer.training
        with torch.no_grad():
            example = self._features(torch.zeros(2, NUM_INPUTS))
        layer.train(was_training)
        self.last = nn.Linear(example.shape[1], NUM_CLASSES)

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        return self.last(self._features(x))

    def _features(self, x: Tensor) -> Tensor:
        found = self.call(self.layer, self.first(x).view(-1, *self.shape))
        while isinstance(found, tuple):
            found = found[0]
        return found.flatten(1).float()


class OnTokens(nn.Module):
    """An embedding, and a linear layer."""

    def __init__(self, embedding: nn.Module) -> None:
        super().__init__()
        self.embedding = embedding
        self.last = nn.LazyLinear(NUM_CLASSES)
        with torch.no_grad():
            self(torch.zeros(2, NUM_INPUTS), torch.zeros(2, 6, dtype=torch.int64))

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        found = self.embedding(tokens)
        return self.last(found.flatten(1))


class Averaged(nn.Module):
    """A model and a moving average of it: the one is trained, the other is used."""

    def __init__(self, live: nn.Module) -> None:
        super().__init__()
        self.live = live
        self.average = deepcopy(live).requires_grad_(requires_grad=False)

    def forward(self, *given: Tensor) -> Any:
        return self.live(*given) if self.training else self.average(*given)

    def move(self) -> None:
        with torch.no_grad():
            for old, new in zip(self.average.parameters(), self.live.parameters(), strict=True):
                old.lerp_(new, 0.1)
