"""The rollback flow: it makes an earlier version of a registered model the champion again."""

from __future__ import annotations

from prefect import flow

from evertrain_flows.defaults import default_storage, default_tracking_uri
from evertrain_tasks.rollback import rollback as rollback_task
from train_core.results import ChampionEntry
from train_core.storage.addresses import absolute


@flow(
    name="rollback",
    flow_run_name="{model}",
    persist_result=True,
    result_serializer="json",
)
def rollback(
    model: str, reason: str, to: int = 0, by: str = "", storage: str = "", tracking_uri: str = ""
) -> ChampionEntry:
    """Move the champion back. MLflow's alias follows, now or with the next `evertrain mirror`.

    Args:
        model: The registered model's name.
        reason: Why; it is recorded.
        to: The version; 0: the champion before this one.
        by: Who decides it; empty: the user of the flow's process.
        storage: The folder of the runs; empty: EVERTRAIN_STORAGE, or .evertrain/runs.
        tracking_uri: MLflow's address; empty: MLFLOW_TRACKING_URI, or .evertrain/mlflow.db.
    """
    storage = absolute(storage) if storage else default_storage()
    return rollback_task(
        storage, model, reason, to or None, by, tracking_uri or default_tracking_uri()
    )
