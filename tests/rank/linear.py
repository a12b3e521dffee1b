"""A linear model without anything that depends on its batch."""

from __future__ import annotations

from torch import nn

from tests.rank.tiny import Tiny


class Linear(Tiny):
    def model(self) -> nn.Module:
        return nn.Linear(8, 3)
