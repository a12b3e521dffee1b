"""The mirror flow: it sends MLflow the metrics and models that MLflow missed in an outage."""

from __future__ import annotations

from prefect import flow

from evertrain_flows.databases import create_tracking_database
from evertrain_flows.defaults import default_storage, tracking_uri_of
from evertrain_tasks.mirror import mirror as mirror_task
from train_core.client.runs import open_run
from train_core.results import Tracking
from train_core.storage.addresses import absolute


@flow(
    name="mirror",
    flow_run_name="{run}",
    persist_result=True,
    result_serializer="json",
)
def mirror(run: str, storage: str = "", tracking_uri: str = "") -> Tracking:
    """Bring MLflow up to date with a run that no process drives; sending twice changes nothing.

    Args:
        run: The run's name.
        storage: The folder of the runs; empty: EVERTRAIN_STORAGE, or .evertrain/runs.
        tracking_uri: MLflow's address; empty: the run's own, MLFLOW_TRACKING_URI, or
            .evertrain/mlflow.db.
    """
    folder = open_run(absolute(storage) if storage else default_storage(), run).folder
    tracking_uri = tracking_uri_of(folder, tracking_uri or None)
    create_tracking_database(tracking_uri)
    return mirror_task(folder.storage, run, tracking_uri)
