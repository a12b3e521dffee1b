"""What the ranks agreed on: the losses and the requests that all received in a step's messages."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, field, replace

from train_core.errors import NotFiniteError
from train_core.policy import metric_names
from train_core.rank.checkpoint.checkpointer import Checkpointer
from train_core.rank.checkpoint.progress import Progress
from train_core.rank.distributed.control_message import ControlMessage, RankRequests
from train_core.rank.distributed.group import Group
from train_core.rank.distributed.host_copy import HostCopy
from train_core.rank.step_metrics import TrainRecords


@dataclass(frozen=True)
class PendingStep:
    """A step that is done, but whose messages from the other ranks are not read yet."""

    message: ControlMessage
    learning_rate: float
    grad_norm: HostCopy | None
    num_samples: int
    weight: float | None
    """What its loss is a mean over, if the workload weighs; None: its samples."""
    ended_at: float = field(default_factory=time.monotonic)
    """By the monotonic clock; on a GPU, when its last kernel was enqueued."""

    def metrics(self, loss: float) -> dict[str, float]:
        """The step's metrics."""
        metrics = {metric_names.TRAIN_LOSS: loss, metric_names.LEARNING_RATE: self.learning_rate}
        if self.grad_norm is not None:
            metrics[metric_names.GRAD_NORM] = self.grad_norm.tolist()
        return metrics


class AgreedRequests:
    """What any rank requests, as all ranks received it: so all of them act after the same step."""

    def __init__(
        self,
        group: Group,
        progress: Progress,
        records: TrainRecords,
        checkpointer: Checkpointer,
    ) -> None:
        self.current = RankRequests()
        self._group = group
        self._checkpointer = checkpointer
        self._progress = progress
        self._records = records
        self._pending: PendingStep | None = None

    def expect(self, step: PendingStep) -> None:
        """Note that the messages of this step are to be read next."""
        self._pending = step

    def settle(self) -> None:
        """Read the last step's messages, if they are not read yet: its loss, and all requests.

        Raises NotFiniteError, on all ranks, before the step's state can be saved.
        """
        if self._pending is None:
            return
        step, self._pending = self._pending, None
        received = step.message.read()
        loss = received.loss if step.weight is None else received.loss * (1 / step.weight)
        if not math.isfinite(loss):
            raise NotFiniteError(self._progress.step, loss, self._checkpointer.last_good())
        self._progress.add_loss(loss, step.num_samples if step.weight is None else step.weight)
        # A rank that was busy may have ended since.
        self.current = replace(self.current, is_busy=False) | received.requests
        metrics = step.metrics(loss)
        self._progress.metrics |= metrics
        self._records.add_step(self._progress, metrics, step.num_samples, step.ended_at)

    def stop(self) -> None:
        """Have the training end after this step; all ranks call it together."""
        self.current |= RankRequests(is_asked_to_stop=True)

    def stop_if_any(self, *, is_asked: bool) -> bool:
        """Stop if any rank is asked to; all ranks call it together. Whether one is."""
        if not any(self._group.gather(is_asked)):
            return False
        self.stop()
        return True

    def begin_checkpoint(self) -> RankRequests:
        """What the ranks request beside the checkpoint that is being taken now.

        The last step's messages are read first: it is what they request, too.
        """
        self.settle()
        self.current = replace(self.current, is_due_by_clock=False, is_retry_due=False)
        return self.current
