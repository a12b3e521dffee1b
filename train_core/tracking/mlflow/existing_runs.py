"""The MLflow runs of a run folder that exist: asked for, or deleted. Nothing is created here."""

from __future__ import annotations

from functools import partial

from train_core.storage.run_folder import RunFolder
from train_core.tracking.mlflow.client_settings import ONE_QUESTION
from train_core.tracking.mlflow.server import all_pages, client_of, existing_client

ID_TAG = "evertrain.id"
STAGE_TAG = "evertrain.stage"


def has_run(folder: RunFolder, tracking_uri: str, experiment: str) -> bool:
    """Whether MLflow has the run of the folder; nothing is created."""
    client = existing_client(tracking_uri)
    found = client.get_experiment_by_name(experiment)
    if found is None:
        return False
    identity = folder.record_digest()
    asked = f"tags.`{ID_TAG}` = '{identity}' and tags.`{STAGE_TAG}` = 'pipeline'"
    return bool(client.search_runs([found.experiment_id], asked, max_results=1))


def delete_runs(run_url: str, tracking_uri: str) -> None:
    """Delete the MLflow runs and models that mirror the run folder at `run_url`.

    Call it while the folder exists: the runs are found by the digest of its run.json.
    """
    ONE_QUESTION.apply()
    client = client_of(tracking_uri)
    identity = RunFolder.at(run_url).record_digest()
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    for run in client.search_runs(experiments, f"tags.`{ID_TAG}` = '{identity}'"):
        asked = [run.info.experiment_id], f"source_run_id = '{run.info.run_id}'"
        for model in all_pages(partial(client.search_logged_models, *asked)):
            client.delete_logged_model(model.model_id)
        client.delete_run(run.info.run_id)
