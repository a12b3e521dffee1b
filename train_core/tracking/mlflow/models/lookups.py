"""Questions to MLflow about models: which checkpoint one is of, and which are registered."""

from __future__ import annotations

import re
from functools import partial

from mlflow import MlflowClient
from mlflow.entities import LoggedModel
from mlflow.exceptions import MlflowException

from train_core.errors import StorageError, TrackingError
from train_core.policy.logins import public_uri, without_login_of
from train_core.storage.run_folder import RunFolder
from train_core.tracking.mlflow.client_settings import ONE_QUESTION, REPEATED_BY_CALLER
from train_core.tracking.mlflow.server import all_pages, existing_client, is_refusal

CHECKPOINT_TAG = "evertrain.checkpoint"
DIGEST_TAG = "evertrain.checkpoint_digest"
WEIGHTS_TAG = "evertrain.weights"
COPIED = "copied"
"""Of `WEIGHTS_TAG`: MLflow has the weights, and the model loads and serves."""
_MODEL_ID = re.compile(r"m-[0-9a-f]{32}")
_MODEL_URI = re.compile(r"models:/(?P<name>[^/@]+)(?:/(?P<version>\d+)|@(?P<alias>[^/@]+))?")


def unregistered_checkpoints(run_url: str, tracking_uri: str) -> list[str]:
    """The run's checkpoints whose model is in MLflow, without a registered version of it.

    A checkpoint whose weights MLflow does not have is not among them: what was registered from it
    may be elsewhere. Raises TrackingError if MLflow does not answer or refuses.
    """
    ONE_QUESTION.apply()
    folder = RunFolder.at(run_url)
    try:
        client = existing_client(tracking_uri)
        registered = registered_models(client)
        experiments = [one.experiment_id for one in all_pages(client.search_experiments)]
        found = []
        for checkpoint in folder.checkpoints():
            filter_string = f"tags.`{DIGEST_TAG}` = '{checkpoint.digest}'"
            search = partial(client.search_logged_models, experiments, filter_string)
            models = {model.model_id for model in all_pages(search) if is_copied(model)}
            if models and not models & registered:
                found.append(str(checkpoint.name))
    except (MlflowException, OSError) as error:
        answer = " ".join(str(error).split())[:500]
        raise TrackingError(
            f"MLflow at {public_uri(tracking_uri)!r} cannot tell which models are registered: "
            f"{without_login_of(answer, tracking_uri)}"
        ) from error
    return found


def is_copied(model: LoggedModel) -> bool:
    """Whether MLflow has the weights; earlier versions of evertrain wrote no other models."""
    return model.tags.get(WEIGHTS_TAG, COPIED) == COPIED


def model_id_of(recorded: str | None, source: str | None) -> str | None:
    """The id of the LoggedModel that a registered version points to; None if it points to none.

    Some stores do not keep the id; the source's address has it as a part of its path.
    """
    parts = (source or "").split("/")
    # The last match is the model: a folder above it may be named like another model.
    return recorded or next((part for part in parts[::-1] if _MODEL_ID.fullmatch(part)), None)


def registered_models(client: MlflowClient) -> set[str | None]:
    """The ids of the LoggedModels that registered versions point to."""
    versions = all_pages(client.search_model_versions)
    return {model_id_of(version.model_id, version.source) for version in versions}


def checkpoint_of_model(model_uri: str, tracking_uri: str) -> tuple[str, str]:
    """The address and the manifest's digest of the checkpoint that a model in MLflow was made from.

    `model_uri` is `models:/name/version`, `models:/name@alias` or a LoggedModel's `models:/m-…`.
    Raises TrackingError if there is no such model or evertrain did not log it, and StorageError
    if MLflow does not answer.
    """
    parsed = _MODEL_URI.fullmatch(model_uri)
    if parsed is None:
        raise TrackingError(
            f"{model_uri!r} names no model: models:/name/version or models:/name@alias"
        )
    REPEATED_BY_CALLER.apply()
    try:
        client = existing_client(tracking_uri)
        tags = _tags_of_model(client, **parsed.groupdict())
    except (MlflowException, OSError) as error:
        message = f"{model_uri!r} in MLflow at {public_uri(tracking_uri)!r}: "
        message += without_login_of(str(error).strip().partition("\n")[0], tracking_uri)
        raise (TrackingError(message) if is_refusal(error) else StorageError(message)) from error
    if not tags.keys() >= {CHECKPOINT_TAG, DIGEST_TAG}:
        raise TrackingError(
            f"{model_uri!r} was not logged by evertrain: it has no tags that name its checkpoint"
        )
    return tags[CHECKPOINT_TAG], tags[DIGEST_TAG]


def _tags_of_model(
    client: MlflowClient, name: str, version: str | None, alias: str | None
) -> dict[str, str]:
    if alias is not None:
        found = client.get_model_version_by_alias(name, alias)
    elif version is not None:
        found = client.get_model_version(name, version)
    else:
        return dict(client.get_logged_model(name).tags)
    model_id = model_id_of(found.model_id, found.source)
    logged = client.get_logged_model(model_id).tags if model_id else {}
    return {**logged, **found.tags}
