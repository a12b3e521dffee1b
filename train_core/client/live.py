"""The current position of a training, which its rank 0 writes into live.json twice a second."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

from train_core.errors import StorageError
from train_core.storage.records.documents import Count, Text
from train_core.storage.run_folder import RunFolder

_METRICS_SHOWN = 6


class Live(BaseModel):
    """One reading of live.json."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    stage: Text
    attempt: Count
    step: Count
    total_steps: Count
    epoch: Count
    epochs: Count
    loss: float | None = None
    samples_per_s: float = 0
    eta_s: float | None = None
    metrics: dict[str, float | None] = {}
    time: float

    @property
    def percent(self) -> float:
        """How much of the training is done, 0 to 100; 0 if nobody knows its length."""
        if not self.total_steps:
            return 0.0
        return min(100.0, 100 * self.step / max(1, self.total_steps))

    def __str__(self) -> str:
        if not self.total_steps:
            return self._report()
        parts = [
            f"step {self.step}/{self.total_steps}",
            f"epoch {self.epoch}/{self.epochs}",
            f"loss {self.loss:.4f}" if self.loss is not None else "loss not finite",
            f"{self.samples_per_s:,.0f} samples/s",
        ]
        if self.eta_s is not None:
            parts.append(f"{self.eta_s:.0f} s left")
        return "  ".join(parts)

    def _report(self) -> str:
        """The newest report of a training function."""
        shown = [
            f"{name} {'not finite' if value is None else format(value, '.6g')}"
            for name, value in list(self.metrics.items())[:_METRICS_SHOWN]
        ]
        return "  ".join([f"report {self.step}", *shown])


def last_reading(folder: RunFolder) -> Live | None:
    """The last reading of a run's training; None if it cannot be read."""
    try:
        live = folder.live()
    except StorageError:
        # The file is read again a moment later.
        return None
    try:
        return Live.model_validate(live, strict=True) if live else None
    except ValidationError:
        return None


class LiveReader:
    """Reads a run's live.json; a reading that an earlier attempt left is ignored."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        found = last_reading(folder)
        self._seen = found.time if found else 0.0

    def read(self) -> Live | None:
        """The newest reading, or None if there is none since the last call."""
        found = last_reading(self._folder)
        if found is None or found.time <= self._seen:
            return None
        self._seen = found.time
        return found
