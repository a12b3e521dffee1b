"""The registered model in MLflow: its versions and aliases, written from the storage's records.

MLflow numbers versions itself, in the order in which it gets them: where it was away meanwhile, or
somebody registers by hand, the numbers differ. The tag `evertrain.version` has the storage's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from mlflow import MlflowClient
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS, ErrorCode

from train_core.champion.history import ModelHistory
from train_core.champion.log import ModelLog
from train_core.champion.records import Fault
from train_core.errors import CheckpointError, ConfigError, TrackingError
from train_core.policy.champion.model_names import CHALLENGER, CHAMPION
from train_core.results import GateResult, ModelVersion
from train_core.storage.records.names import CHECKPOINTS
from train_core.tracking.mlflow.client_settings import ONE_QUESTION
from train_core.tracking.mlflow.existing_runs import ID_TAG
from train_core.tracking.mlflow.models.kept import known_models
from train_core.tracking.mlflow.models.lookups import CHECKPOINT_TAG, DIGEST_TAG
from train_core.tracking.mlflow.models.pages import (
    MOST_CHAMPIONS,
    describe_model,
    save_view,
    version_description,
)
from train_core.tracking.mlflow.runs import MlflowRuns
from train_core.tracking.mlflow.server import all_pages, existing_client
from train_core.tracking.tracker import GATE_TAG

MODEL_TAG = "evertrain.model"
"""The tag of a registered model with its name in the storage, which it keeps if it is renamed."""
VERSION_TAG = "evertrain.version"
_RUN_TAG = "evertrain.run"
_GATE_FOLDER = "gate"
_EXISTS = ErrorCode.Name(RESOURCE_ALREADY_EXISTS)
_log = logging.getLogger(__name__)


def register(
    runs: MlflowRuns, result: GateResult, log: ModelLog, logged: Callable[[], str]
) -> None:
    """Show a decision on its version, which is registered if it is not yet, and set the aliases.

    `logged` as of `Tracker.version`.
    """
    decision = result.decision
    name = name_in_mlflow(runs.client, decision.challenger.model)
    version = _registered(runs, decision.challenger, name, logged)
    runs.client.set_model_version_tag(name, version, GATE_TAG, decision.outcome)
    runs.client.update_model_version(name, version, version_description(result))
    save_view(runs.client, runs.experiment_id, decision)
    if missing := show_aliases(runs.client, log, name):
        _log.warning("%s", _not_there(missing))


def name_in_mlflow(client: MlflowClient, model: str) -> str:
    """The name of the registered model in MLflow: another one if a person has renamed it there.

    A tag says which model it is. The renamed one goes on to be shown, and none is made in its old
    place: whoever renamed it loads it by that name.
    """
    if all_pages(partial(client.search_registered_models, f"name = '{model}'")):
        return model
    tagged = f"tags.`{MODEL_TAG}` = '{model}'"
    found = sorted(one.name for one in all_pages(partial(client.search_registered_models, tagged)))
    if not found:
        return model
    _log.warning(
        "registered model %r is called %r in MLflow now: its versions and aliases are shown there. "
        "For another name here, too, pass --registered-model",
        model,
        found[0],
    )
    return str(found[0])


def show_aliases(client: MlflowClient, log: ModelLog, name: str = "") -> ModelVersion | None:
    """Let MLflow's aliases point where the storage's records do, the champion's last.

    The champion, if MLflow does not have that version; then the alias stays where it is. What else
    of the records cannot be read is told and left out. Raises CheckpointError or ConfigError if the
    champion's own entry cannot be read.
    """
    name = name or name_in_mlflow(client, log.model)
    history = log.read()
    known, newest = _known(client, name), _newest_version(history)
    if newest and (number := known.get(_key(newest))):
        client.set_registered_model_alias(name, CHALLENGER, number)
    shown = None
    # Another pipeline may promote, and set the alias, in between.
    while (champion := history.champion) is not None and champion.number != shown:
        key = _key(champion.version)
        if key not in known:
            known = _known(client, name)
        if key not in known:
            return champion.version
        client.set_registered_model_alias(name, CHAMPION, known[key])
        _describe(client, history, name)
        shown, history = champion.number, log.read()
    return None


def _newest_version(history: ModelHistory) -> ModelVersion | None:
    try:
        return history.newest_version()
    except (CheckpointError, ConfigError) as error:
        _log.warning("MLflow's alias %r stays where it is: %s", CHALLENGER, error)
        return None


def _describe(client: MlflowClient, history: ModelHistory, name: str) -> None:
    """Say on the model's page which version serves, after which others, and what is damaged."""
    entries, faults = [], []
    for one in history.champions[-MOST_CHAMPIONS:]:
        if isinstance(one, Fault):
            _log.warning("MLflow's page of model %r may lack one: %s", history.model, one.error)
            faults.append(str(one.error))
        else:
            entries.append(one)
    if entries:
        describe_model(client, name, entries, faults)
    client.set_registered_model_tag(name, MODEL_TAG, history.model)


def show_aliases_of(storage: str, model: str, tracking_uri: str) -> None:
    """`show_aliases` of a model at this MLflow.

    Raises TrackingError if MLflow does not have the champion, and MLflow's own errors.
    """
    ONE_QUESTION.apply()
    if missing := show_aliases(existing_client(tracking_uri), ModelLog(storage, model)):
        raise TrackingError(_not_there(missing))


def _not_there(champion: ModelVersion) -> str:
    return (
        f"MLflow does not have the champion {champion.address}: `evertrain mirror {champion.run}` "
        "shows it there"
    )


def _registered(
    runs: MlflowRuns, version: ModelVersion, name: str, logged: Callable[[], str]
) -> str:
    """MLflow's number of a version, which is registered under `name` if it is not yet."""
    if number := _known(runs.client, name).get(_key(version)):
        return number
    try:
        runs.client.create_registered_model(name, {MODEL_TAG: version.model})
    except MlflowException as error:
        if error.error_code != _EXISTS:
            raise
    else:
        _tell_deleted(runs, version)
    run_id, model = runs.run_id("pipeline"), known_models(runs).get(logged())
    made = runs.client.create_model_version(
        name,
        # Not `models:/ID`: for that, MLflow's client asks the process's one MLflow. A server takes
        # no source that is not the model's own, if it is told the model.
        source=model.artifact_location if model else f"runs:/{run_id}/{_GATE_FOLDER}",
        run_id=run_id,
        model_id=model.model_id if model else None,
        tags={
            VERSION_TAG: str(version.version),
            _RUN_TAG: version.run,
            CHECKPOINT_TAG: f"{runs.run.uri}/{CHECKPOINTS}/{version.checkpoint}",
            DIGEST_TAG: version.checkpoint_digest,
        },
    )
    if str(made.version) != str(version.version):
        _log.warning(
            "MLflow numbers %s as version %s, as it got others before",
            version.address,
            made.version,
        )
    return str(made.version)


def _tell_deleted(runs: MlflowRuns, version: ModelVersion) -> None:
    """Say so if MLflow had the registered model, which was just made, before."""
    others = runs.client.search_runs(
        [runs.experiment_id],
        f"tags.`{GATE_TAG}` LIKE 'models:/{version.model}/%' "
        f"and tags.`{ID_TAG}` != '{runs.run.id}'",
        max_results=1,
    )
    if others:
        _log.warning(
            "registered model %r was deleted in MLflow, and is made anew with version %s: "
            "`evertrain mirror RUN` shows those of earlier runs again (`evertrain champions %s "
            "--versions` lists them)",
            version.model,
            version.version,
            version.model,
        )


def _key(version: ModelVersion) -> tuple[str, str]:
    """What tells a version from all others, also of another storage under the same name."""
    return version.run, version.checkpoint_digest


def _known(client: MlflowClient, model: str) -> dict[tuple[str, str], str]:
    """MLflow's numbers of the versions that evertrain has registered, by their keys."""
    found = all_pages(partial(client.search_model_versions, f"name='{model}'"))
    ours = [one for one in found if one.tags.keys() >= {_RUN_TAG, DIGEST_TAG}]
    return {(one.tags[_RUN_TAG], one.tags[DIGEST_TAG]): str(one.version) for one in ours}
