"""The select task: ranks checkpoints by a metric."""

from __future__ import annotations

from prefect import task

from evertrain_tasks.retries import OPTIONS
from train_core.policy.checkpoints.selection import Candidate, Order, ranked
from train_core.policy.metric_names import full_names
from train_core.results import CheckpointSummary, EvaluationResult, Selection


@task(name="select", task_run_name="select by {metric}", **OPTIONS)
def select(checkpoints: list[CheckpointSummary], metric: str, order: Order) -> Selection:
    """The best checkpoint by `metric`, ties to the later step, and all in their order."""
    named = {one.name: one for one in checkpoints}
    candidates = [Candidate(c.name, c.step, c.metrics) for c in named.values()]
    ranking = [named[candidate.name] for candidate in ranked(candidates, metric, order)]
    return Selection(best=ranking[0], metric=metric, order=order, ranking=ranking)


def with_metrics(evaluations: list[EvaluationResult]) -> list[CheckpointSummary]:
    """The checkpoints that were evaluated, with the metrics of their evaluations.

    Those in a manifest are of the last validation before it.
    """
    return [
        one.checkpoint.model_copy(
            update={"metrics": {**one.checkpoint.metrics, **full_names(one.split, one.metrics)}}
        )
        for one in evaluations
    ]
