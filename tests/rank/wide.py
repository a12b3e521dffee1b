"""A workload whose module sets how wide floats are, as it is imported: once in a process."""

from __future__ import annotations

from multiprocessing import parent_process

import torch
from torch import nn

from tests.rank.tiny import Tiny

# Not in the process of the tests.
if parent_process() is not None:
    torch.set_default_dtype(torch.float64)


class Wide(Tiny):
    def model(self) -> nn.Module:
        model = super().model().float()
        model.register_buffer("scale", torch.ones(1))
        return model
