"""The MLflow run of a search, which the runs of its trials are nested in."""

from __future__ import annotations

from mlflow.entities import Run
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.utils import mlflow_tags

from train_core.tracking.mlflow.existing_runs import STAGE_TAG
from train_core.tracking.mlflow.server import failure_of
from train_core.tracking.refusals import Failure

SEARCH_TAG = "evertrain.search"
"""The tag with the name of the search, of its own run and of its trials'."""
_STAGE = "search"


def search_tags(client: MlflowClient, experiment_id: str, search: str) -> dict[str, str]:
    """The tags that nest a trial's run in that of its search, which is created if there is none.

    Trials that begin at once may each create one: all take the oldest, and who made another one
    deletes it.
    """
    found = _found(client, experiment_id, search)
    if not found:
        tags = {SEARCH_TAG: search, STAGE_TAG: _STAGE}
        own = client.create_run(experiment_id, tags=tags, run_name=search)
        # It has nothing of its own that could be under way.
        client.set_terminated(own.info.run_id)
        found = _found(client, experiment_id, search) or [own]
        if found[0].info.run_id != own.info.run_id:
            _delete(client, own)
    return {SEARCH_TAG: search, mlflow_tags.MLFLOW_PARENT_RUN_ID: found[0].info.run_id}


def _found(client: MlflowClient, experiment_id: str, search: str) -> list[Run]:
    # Neither value needs quoting in a filter: a name of a run's letters, and a word of our own.
    return list(
        client.search_runs(
            [experiment_id],
            f"tags.`{SEARCH_TAG}` = '{search}' and tags.`{STAGE_TAG}` = '{_STAGE}'",
            order_by=["attributes.start_time ASC", "attributes.run_id ASC"],
        )
    )


def _delete(client: MlflowClient, run: Run) -> None:
    try:
        client.delete_run(run.info.run_id)
    except MlflowException as error:
        if failure_of(error) is not Failure.REFUSED:
            raise
