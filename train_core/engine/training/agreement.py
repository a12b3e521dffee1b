"""What the ranks agreed on: the losses and the requests that a step's messages brought to all."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from train_core.engine.distributed.control_message import ControlMessage, RankRequests
from train_core.engine.distributed.group import Group
from train_core.policy import metric_names


@dataclass(frozen=True)
class PendingStep:
    """A step that is done, but for what all ranks' messages say of it."""

    message: ControlMessage
    learning_rate: float
    grad_norm: torch.Tensor | None
    num_samples: int

    def metrics(self, loss: float) -> dict[str, float]:
        """The step's metrics."""
        metrics = {metric_names.TRAIN_LOSS: loss, metric_names.LEARNING_RATE: self.learning_rate}
        if self.grad_norm is not None:
            metrics[metric_names.GRAD_NORM] = float(self.grad_norm)
        return metrics


class AgreedRequests:
    """What any rank requests, as all ranks received it: so all of them act after the same step."""

    def __init__(self, group: Group) -> None:
        self.current = RankRequests()
        self._group = group

    def receive(self, requests: RankRequests) -> None:
        """Add the requests of a step's messages."""
        # A rank that was busy may have ended since.
        self.current = replace(self.current, is_busy=False) | requests

    def stop(self) -> None:
        """Have the training end after this step; all ranks call it together."""
        self.current |= RankRequests(is_asked_to_stop=True)

    def stop_if_any(self, *, is_asked: bool) -> bool:
        """Stop if any rank is asked to; all ranks call it together. Whether one is."""
        if not any(self._group.gather(is_asked)):
            return False
        self.stop()
        return True

    def begin_checkpoint(self) -> None:
        """Note that the checkpoint which ranks requested is being taken."""
        self.current = replace(self.current, wants_checkpoint=False, wants_retry=False)
