"""The copy of a state into host memory. From a GPU it goes on beside the training's next step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

Pairs = Sequence[tuple[Tensor, Tensor]]
"""Where a tensor is copied to, and the tensor."""


class DeviceCopy:
    """One copy at a time, from the tensors of a training to host memory that exists.

    On a CPU the copy is done when `start` returns. On a GPU `start` returns at once, and nothing
    that the training enqueues later can change what is copied: the training's stream copies what
    its next step may change at any time, and another stream copies what only an update changes,
    which `before_update` holds back. `wait`, in any thread, returns when all is copied.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        self._copied: list[torch.cuda.Event] = []
        self._sources: list[Tensor] = []

    def start(self, changing: Pairs, updated: Pairs) -> None:
        """Copy `changing`, which any kernel of the next step may change, and `updated`.

        The latter are changed by an update of the weights only. The host memory must be pinned if
        the tensors are a GPU's.
        """
        _copy(changing)
        if self._stream is None:
            _copy(updated)
            return
        training = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(training)
        with torch.cuda.stream(self._stream):
            _copy(updated)
        self._copied = [training.record_event(), self._stream.record_event()]
        # Their memory may not be given to others while it is read.
        self._sources = [source for _, source in updated]

    def before_update(self) -> None:
        """Let the update that is enqueued next wait, on the GPU, for the end of the copy."""
        for event in self._copied:
            torch.cuda.current_stream(self._device).wait_event(event)

    def wait(self) -> None:
        """Wait until everything is copied."""
        for event in self._copied:
            event.synchronize()
        self._sources = []


def _copy(pairs: Pairs) -> None:
    if pairs:  # a rank may have nothing to store
        targets, sources = map(list, zip(*pairs, strict=True))
        with torch.no_grad():
            torch._foreach_copy_(targets, sources, non_blocking=True)
