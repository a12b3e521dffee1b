"""The checkpoints of a report, to be shown in a table."""

from __future__ import annotations

from train_core.policy.metric_names import VALIDATION
from train_core.results import CheckpointSummary, Report


def compared(report: Report) -> list[CheckpointSummary]:
    """The checkpoints that the best one was chosen from, oldest first, with their metrics.

    The metrics are those of the validation split, by their short names; those of a training
    function are what it reported with each checkpoint.
    """
    measured = [
        one.checkpoint.model_copy(update={"metrics": one.metrics})
        for one in report.evaluations
        if one.split == VALIDATION
    ]
    return sorted(measured or report.train.checkpoints, key=lambda one: one.step)


def is_best(report: Report, checkpoint: CheckpointSummary) -> bool:
    """Whether the checkpoint is the best one of the report."""
    return report.best is not None and checkpoint.name == report.best.name
