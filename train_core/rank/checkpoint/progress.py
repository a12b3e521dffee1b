"""Where a training is: the part of its state that is numbers, not tensors."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from train_core.config import TrainConfig
from train_core.policy.checkpoints.save_schedule import AfterStep
from train_core.policy.checkpoints.selection import score
from train_core.policy.metric_names import EPOCH_LOSS
from train_core.policy.samples.steps import StepPlan
from train_core.policy.stop_reasons import Reached, StopReason, reason_to_stop
from train_core.storage.records.journal import finite
from train_core.storage.records.manifest import CommitFacts


@dataclass
class Progress:
    """The position, the running sums of the epoch, and what early stopping remembers."""

    step: int = 0
    """Optimizer steps done."""
    epoch: int = 0
    """Epochs completed, their validation included."""
    step_in_epoch: int = 0
    samples_seen: int = 0
    epoch_loss_sum: float = 0.0
    epoch_samples: float = 0
    """What the sum is divided by: samples, or what the workload's losses are means over."""
    metrics: dict[str, float] = field(default_factory=dict)
    """The newest value of each metric."""
    validated_step: int = -1
    best: float | None = None
    """The best value so far of the monitored metric."""
    num_bad_validations: int = 0
    elapsed_s: float = 0.0
    stopped_by: str = ""
    """The value of a StopReason; empty: the training goes on."""

    def capture(self) -> dict[str, Any]:
        """The values, for the checkpoint."""
        return asdict(self)

    def restore(self, state: dict[str, Any]) -> None:
        """Take the values of a checkpoint."""
        for name in asdict(self):
            setattr(self, name, state[name])

    def facts(
        self, attempt: int, processors: tuple[str, ...], *, is_scheduled: bool
    ) -> CommitFacts:
        """What the commit of an attempt's checkpoint says of this position."""
        return CommitFacts(
            attempt=attempt,
            step=self.step,
            epoch=self.epoch,
            samples_seen=self.samples_seen,
            metrics=finite(self.metrics),
            validated=self.validated_step == self.step,
            stopped_by=self.stopped_by,
            in_turn=is_scheduled,
            elapsed_s=self.elapsed_s,
            processors=processors,
        )

    def count_step(self, num_samples: int) -> None:
        """One more optimizer step, over so many samples."""
        self.step += 1
        self.step_in_epoch += 1
        self.samples_seen += num_samples

    def add_loss(self, loss: float, weight: float) -> None:
        """Add a step's mean loss, over so many samples or the like, to the epoch's."""
        self.epoch_loss_sum += loss * weight
        self.epoch_samples += weight

    def end_epoch(self) -> dict[str, float]:
        """Close the epoch's sums and give its metrics."""
        mean = self.epoch_loss_sum / self.epoch_samples
        self.epoch += 1
        self.step_in_epoch = self.epoch_samples = 0
        self.epoch_loss_sum = 0.0
        return {EPOCH_LOSS: mean}

    def judge(self, config: TrainConfig) -> None:
        """Compare the newest validation with the best, for early stopping."""
        value = self.metrics.get(config.monitor)
        now = score(value, config.order)
        if self.best is None or now > score(self.best, config.order) + (
            config.early_stopping_min_delta
        ):
            self.best, self.num_bad_validations = value, 0
        else:
            self.num_bad_validations += 1

    def awaits_validation(self, plan: StepPlan) -> bool:
        """Whether all steps of an epoch are done, and its validation is not."""
        return self.step_in_epoch == plan.steps_per_epoch

    def after_step(self, plan: StepPlan) -> AfterStep:
        """What the schedule of checkpoints goes by."""
        return AfterStep(
            step=self.step,
            epoch=self.epoch,
            step_in_epoch=self.step_in_epoch,
            awaits_validation=self.awaits_validation(plan),
            is_validated=self.validated_step == self.step,
            stopped_by=self.stopped_by,
        )

    def reason_to_stop(
        self,
        config: TrainConfig,
        plan: StepPlan,
        *,
        is_duration_over: bool = False,
        is_asked_to_stop: bool = False,
    ) -> StopReason | None:
        """Why the training ends here; None: it goes on."""
        return reason_to_stop(
            Reached(self.step, self.epoch, self.elapsed_s, self.num_bad_validations),
            config,
            awaits_validation=self.awaits_validation(plan),
            is_duration_over=is_duration_over,
            is_asked_to_stop=is_asked_to_stop,
        )

    def total_steps(self, config: TrainConfig, plan: StepPlan) -> int:
        """Optimizer steps until the end, unless something stops the training early."""
        planned = config.epochs * plan.steps_per_epoch
        return min(planned, config.max_steps) if config.max_steps else planned
