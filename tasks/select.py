"""The select task: ranks the checkpoints by the evaluation's metrics."""

from __future__ import annotations

from prefect import task

from tasks.retries import OPTIONS
from train_core.policy.metric_names import full_names
from train_core.policy.selection import Candidate, Order, ranked
from train_core.results import EvaluationResult, Selection


@task(name="select", task_run_name="select by {metric}", **OPTIONS)
def select(evaluations: list[EvaluationResult], metric: str, order: Order) -> Selection:
    """The best checkpoint by `metric`, ties to the later step, and all in their order."""
    # The evaluation's metrics, as those in the manifest are of the last validation before it.
    checkpoints = {
        one.checkpoint.name: one.checkpoint.model_copy(
            update={"metrics": {**one.checkpoint.metrics, **full_names(one.split, one.metrics)}}
        )
        for one in evaluations
    }
    candidates = [Candidate(c.name, c.step, c.metrics) for c in checkpoints.values()]
    ranking = [checkpoints[candidate.name] for candidate in ranked(candidates, metric, order)]
    return Selection(best=ranking[0], metric=metric, order=order, ranking=ranking)
