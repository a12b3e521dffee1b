"""Metrics under their full names."""

from __future__ import annotations

from train_core.results import EvaluationResult


def full_metrics(evaluation: EvaluationResult) -> dict[str, float | None]:
    """The evaluation's metrics as `<split>/<name>`, as the journal and `monitor` name them."""
    prefix = f"{evaluation.split}/"
    return {
        name if name.startswith(prefix) else prefix + name: value
        for name, value in evaluation.metrics.items()
    }
