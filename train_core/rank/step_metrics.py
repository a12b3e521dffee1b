"""What a training records of its steps: the journal, the progress for people, and the clock.

Metrics reach MLflow with the next commit: the driver sends what a manifest's journal covers
(`tracking/delivery/mirror.py`).
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping

from train_core.config import TrainConfig
from train_core.policy import metric_names
from train_core.policy.samples.steps import StepPlan
from train_core.rank.checkpoint.journal_buffer import JournalBuffer
from train_core.rank.checkpoint.progress import Progress
from train_core.storage.run_writer import RunWriter

_CLOCK_TICK_S = 1e-9


class TrainClock:
    """Seconds of training, those before an interruption included."""

    def __init__(self) -> None:
        self._before_s = 0.0
        self._began_at = time.monotonic()

    def start(self, before_s: float) -> None:
        """Count from here, after so many seconds in earlier attempts."""
        self._before_s = before_s
        self._began_at = time.monotonic()

    @property
    def here_s(self) -> float:
        """Seconds of this attempt."""
        return time.monotonic() - self._began_at

    @property
    def elapsed_s(self) -> float:
        """Seconds of all attempts."""
        return self._before_s + self.here_s


class Throughput:
    """Samples per second over the last seconds; one step's rate says little of the training's.

    A step that takes longer than the window is measured alone. What is no step does not count.
    """

    def __init__(self, window_s: float = 2.0) -> None:
        self._window_s = window_s
        self._samples = 0
        self._marks: deque[tuple[float, int]] = deque()
        """When steps ended, and the samples until then; the oldest is as old as the window."""

    def restart(self, now: float) -> None:
        """Count from `now` on, a time of the monotonic clock."""
        self._marks = deque([(now, self._samples)])

    def add(self, now: float, num_samples: int) -> float:
        """Count a step that ended then; samples per second."""
        self._samples += num_samples
        while len(self._marks) > 1 and self._marks[1][0] <= now - self._window_s:
            self._marks.popleft()
        since, samples = self._marks[0]
        self._marks.append((now, self._samples))
        return (self._samples - samples) / max(now - since, _CLOCK_TICK_S)


class TrainRecords:
    """Records each step and each validation in the journal, and shows them in live.json."""

    def __init__(
        self, writer: RunWriter, config: TrainConfig, plan: StepPlan, *, shows_live: bool
    ) -> None:
        self.journal = JournalBuffer(writer, shows_live=shows_live)
        self.clock = TrainClock()
        self.first_step = 0
        """The step after which this attempt began."""
        self._config = config
        self._plan = plan
        self._attempt = writer.attempt
        self._throughput = Throughput()

    def start(self, progress: Progress) -> None:
        """Go on from here, and begin to write live.json in the background."""
        self.journal.start()
        self.first_step = progress.step
        self.clock.start(progress.elapsed_s)
        self._throughput.restart(time.monotonic())

    def add_step(
        self, progress: Progress, metrics: Mapping[str, float], num_samples: int, ended_at: float
    ) -> None:
        """Record a step over so many samples that ended then, by the monotonic clock."""
        rate = self._throughput.add(ended_at, num_samples)
        self.journal.add(progress.step, metrics, {metric_names.SAMPLES_PER_S: rate})
        self._show(progress)

    def add_validation(self, progress: Progress, metrics: Mapping[str, float]) -> None:
        """Record the end of an epoch."""
        self.journal.add(progress.step, metrics)
        self._throughput.restart(time.monotonic())
        self._show(progress)

    def close(self, timeout_s: float | None = None) -> None:
        """Write what is shown a last time, and end the thread that does."""
        self.journal.close(timeout_s)

    def _show(self, progress: Progress) -> None:
        config, done_s = self._config, self.clock.here_s
        total = progress.total_steps(config, self._plan)
        rate = (progress.step - self.first_step) / done_s if done_s > 0 else 0.0
        self.journal.show(
            attempt=self._attempt,
            step=progress.step,
            total_steps=total,
            epoch=progress.epoch,
            epochs=config.epochs,
            loss=progress.metrics.get(metric_names.TRAIN_LOSS),
            samples_per_s=rate * config.batch_size,
            eta_s=(total - progress.step) / rate if rate else None,
            metrics=metric_names.only(metric_names.VALIDATION, progress.metrics),
        )
