"""Metrics as they are named and shown."""

from __future__ import annotations

from train_core.results import EvaluationResult


def full_metrics(evaluation: EvaluationResult) -> dict[str, float | None]:
    """The evaluation's metrics as `<split>/<name>`, as the journal and `monitor` name them."""
    prefix = f"{evaluation.split}/"
    return {
        name if name.startswith(prefix) else prefix + name: value
        for name, value in evaluation.metrics.items()
    }


def number(value: object) -> str:
    """A metric as it is shown: four digits, small ones as 1.0e-05, a dash for a missing one."""
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 0.001 else f"{value:.4f}"
    return "-" if value is None else str(value)
