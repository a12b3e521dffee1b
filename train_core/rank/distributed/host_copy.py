"""Small values of a device for the host, which waits for them and for nothing that comes after."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

_NOT_THERE = -math.inf
"""No norm and no number of requests; as a loss it is refused in any case."""


class HostCopy:
    """The values of a tensor as they are when the kernels enqueued so far are done.

    `Tensor.tolist` waits for all that the device was given to compute until it is called; this
    waits for the copy alone. On a CPU the values are those of the tensor itself.
    """

    def __init__(self, values: Tensor) -> None:
        self._values = values
        self._copied: torch.cuda.Event | None = None
        if values.is_cuda:
            self._values = torch.full_like(values, _NOT_THERE, device="cpu", pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._copied = torch.cuda.Event()
            self._copied.record()

    def tolist(self) -> Any:
        """The values as numbers, in lists; a tensor without dimensions is one number."""
        if self._copied is not None:
            try:
                self._copied.synchronize()
            except RuntimeError:
                # A kernel that was enqueued later has failed, and the device tells everyone so.
                if (self._values == _NOT_THERE).any():
                    raise
        return self._values.tolist()
