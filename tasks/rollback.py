"""The rollback task: it moves the champion of a registered model back."""

from __future__ import annotations

from prefect import get_run_logger, task

from evertrain_tasks.retries import OPTIONS
from train_core.client.champions import rollback as move_back
from train_core.client.champions import show_champion
from train_core.errors import EvertrainError
from train_core.results import ChampionEntry


@task(name="rollback", task_run_name="rollback {model}", **OPTIONS | {"retries": 0})
def rollback(
    storage: str, model: str, reason: str, to: int | None, by: str, tracking_uri: str
) -> ChampionEntry:
    """Record the earlier version as champion, and let MLflow's alias follow.

    It is not tried again: a second call would go back by one champion more.
    """
    entry = move_back(storage, model, reason, to=to, person=by)
    try:
        show_champion(storage, model, tracking_uri)
    except EvertrainError as error:
        get_run_logger().warning(
            "MLflow does not show it yet, `evertrain mirror %s` tries again: %s",
            entry.version.run,
            error,
        )
    return entry
