"""The registered model in MLflow: its versions and aliases, written from the storage's records.

MLflow numbers versions itself, in the order in which it gets them: where it was away meanwhile, or
somebody registers by hand, the numbers differ. The tag `evertrain.version` has the storage's.
"""

from __future__ import annotations

import logging
from functools import partial

from mlflow import MlflowClient
from mlflow.entities import LoggedModel
from mlflow.exceptions import MlflowException
from mlflow.protos.databricks_pb2 import RESOURCE_ALREADY_EXISTS, ErrorCode

from train_core.engine.metrics.gate_figures import champion_and_challenger
from train_core.engine.tracking.client_settings import ONE_QUESTION
from train_core.engine.tracking.existing_mlflow_runs import ID_TAG, has_run
from train_core.engine.tracking.mlflow_runs import MlflowRuns
from train_core.engine.tracking.mlflow_server import all_pages, existing_client
from train_core.engine.tracking.models.kept import model_of
from train_core.engine.tracking.models.logged import copy_weights, weights_left_out, weights_of
from train_core.engine.tracking.models.lookups import CHECKPOINT_TAG, DIGEST_TAG
from train_core.engine.tracking.models.pages import (
    GATE_TAG,
    MOST_CHAMPIONS,
    describe_model,
    save_view,
    version_description,
)
from train_core.errors import CheckpointError, ConfigError, TrackingError
from train_core.policy.champion.model_names import CHALLENGER, CHAMPION
from train_core.policy.end_status import EndStatus
from train_core.policy.logins import public_uri
from train_core.results import GateResult, ModelVersion
from train_core.storage.coordination import lease
from train_core.storage.records.names import CHECKPOINTS
from train_core.storage.registered_models.decisions import gate_result, newest_decision
from train_core.storage.registered_models.model_registry import ModelRegistry
from train_core.storage.run_folder import RunFolder
from train_core.storage.runs_of_storage import is_run_finished

MODEL_TAG = "evertrain.model"
"""The tag of a registered model with its name in the storage, which it keeps if it is renamed."""
VERSION_TAG = "evertrain.version"
_RUN_TAG = "evertrain.run"
_GATE_FOLDER = "gate"
_FIGURE = "champion_and_challenger.png"
_EXISTS = ErrorCode.Name(RESOURCE_ALREADY_EXISTS)
_log = logging.getLogger(__name__)


def show_gate(runs: MlflowRuns, result: GateResult) -> None:
    """Show the decision in its run and on its version, and set the aliases."""
    decision = result.decision
    runs.set_tags("pipeline", {GATE_TAG: result.summary})
    runs.client.log_dict(
        runs.run_id("pipeline"), result.model_dump(mode="json"), f"{_GATE_FOLDER}/decision.json"
    )
    figure = None
    with runs.refusals.passing("the figure of champion and challenger"):
        figure = champion_and_challenger(result)
    if figure is not None:
        runs.client.log_figure(runs.run_id("pipeline"), figure, f"{_GATE_FOLDER}/{_FIGURE}")
    model = decision.challenger.model
    name = name_in_mlflow(runs.client, model)
    version = _registered(runs, decision.challenger, name)
    runs.client.set_model_version_tag(name, version, GATE_TAG, decision.outcome)
    runs.client.update_model_version(name, version, version_description(result))
    save_view(runs.client, runs.experiment_id, decision)
    if missing := show_aliases(runs.client, ModelRegistry(runs.folder.storage, model), name):
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


def show_aliases(
    client: MlflowClient, registry: ModelRegistry, name: str = ""
) -> ModelVersion | None:
    """Let MLflow's aliases point where the storage's records do, the champion's last.

    The champion, if MLflow does not have that version; then the alias stays where it is. What else
    of the records cannot be read is told and left out. Raises CheckpointError or ConfigError if the
    champion's own entry cannot be read.
    """
    name = name or name_in_mlflow(client, registry.model)
    known, newest = _known(client, name), _newest_version(registry)
    if newest and (number := known.get(_key(newest))):
        client.set_registered_model_alias(name, CHALLENGER, number)
    shown, champion = None, registry.champion()
    # Another pipeline may promote, and set the alias, in between.
    while champion is not None and champion.number != shown:
        key = _key(champion.version)
        if key not in known:
            known = _known(client, name)
        if key not in known:
            return champion.version
        client.set_registered_model_alias(name, CHAMPION, known[key])
        _describe(client, registry, name)
        shown, champion = champion.number, registry.champion()
    return None


def _newest_version(registry: ModelRegistry) -> ModelVersion | None:
    numbers = registry.version_numbers()
    try:
        return registry.version(numbers[-1]) if numbers else None
    except (CheckpointError, ConfigError) as error:
        _log.warning("MLflow's alias %r stays where it is: %s", CHALLENGER, error)
        return None


def _describe(client: MlflowClient, registry: ModelRegistry, name: str) -> None:
    """Say on the model's page which version serves, after which others, and what is damaged."""
    entries, faults = [], []
    for number in registry.champion_numbers()[-MOST_CHAMPIONS:]:
        try:
            entry = registry.entry(number)
        except (CheckpointError, ConfigError) as error:
            _log.warning("MLflow's page of model %r lacks a champion: %s", registry.model, error)
            faults.append(str(error))
            continue
        entries += [entry] if entry else []
    if entries:
        describe_model(client, name, entries, faults)
    client.set_registered_model_tag(name, MODEL_TAG, registry.model)


def show_aliases_of(storage: str, model: str, tracking_uri: str) -> None:
    """`show_aliases` of a model at this MLflow.

    Raises TrackingError if MLflow does not have the champion, and MLflow's own errors.
    """
    ONE_QUESTION.apply()
    if missing := show_aliases(existing_client(tracking_uri), ModelRegistry(storage, model)):
        raise TrackingError(_not_there(missing))


def _not_there(champion: ModelVersion) -> str:
    return (
        f"MLflow does not have the champion {champion.address}: `evertrain mirror {champion.run}` "
        "shows it there"
    )


def show_gate_at(run_url: str, model: str, version: int, tracking_uri: str) -> None:
    """`show_gate` of the newest decision on a version of the run at this address.

    Nobody has to drive the run. Raises TrackingError if this MLflow does not have it, and MLflow's
    own errors.
    """
    ONE_QUESTION.apply()
    folder = RunFolder.at(run_url)
    decision = newest_decision(folder, ModelRegistry(folder.storage, model).version(version))
    experiment = folder.record().requested.experiment
    if decision is None or not has_run(folder, tracking_uri, experiment):
        raise TrackingError(
            f"MLflow at {public_uri(tracking_uri)!r} does not have run {folder.name!r}: "
            f"`evertrain mirror {folder.name}` shows it there"
        )
    runs = MlflowRuns(folder, tracking_uri, experiment, is_live=False)
    show_gate(runs, gate_result(folder, decision))
    if runs.is_open() and lease.holder_of(folder.store) is None:
        if is_run_finished(folder, folder.report(), folder.newest()):
            runs.end(EndStatus.FINISHED)
        else:
            # It has stages left, at whose end its driver ends it.
            runs.describe()
    raise_refused(runs)


def raise_refused(runs: MlflowRuns) -> None:
    """Raise TrackingError if MLflow refused something of what was shown."""
    if told := "; ".join(runs.refusals.told):
        raise TrackingError(f"MLflow does not take all of run {runs.folder.name!r}: {told}")


def _registered(runs: MlflowRuns, version: ModelVersion, name: str) -> str:
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
    run_id, logged = runs.run_id("pipeline"), _logged_model(runs, version)
    made = runs.client.create_model_version(
        name,
        # Not `models:/ID`: for that, MLflow's client asks the process's one MLflow. A server takes
        # no source that is not the model's own, if it is told the model.
        source=logged.artifact_location if logged else f"runs:/{run_id}/{_GATE_FOLDER}",
        run_id=run_id,
        model_id=logged.model_id if logged else None,
        tags={
            VERSION_TAG: str(version.version),
            _RUN_TAG: version.run,
            CHECKPOINT_TAG: runs.folder.store.uri(f"{CHECKPOINTS}/{version.checkpoint}"),
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
        f"and tags.`{ID_TAG}` != '{runs.folder.record_digest()}'",
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


def _logged_model(runs: MlflowRuns, version: ModelVersion) -> LoggedModel | None:
    """The version's LoggedModel, with a copy of the weights if the run wants any.

    None if MLflow takes no such model. Only a predictor knows what is in a folder that a training
    function reported.
    """
    checkpoint, asked = runs.folder.find(version.checkpoint), runs.folder.newest_request()
    is_refused = weights_of(version.checkpoint) in runs.refusals.parts
    if asked.requested.mirror_weights != "none" and asked.config.has_workload and not is_refused:
        with weights_left_out(runs, version.checkpoint):
            copy_weights(runs, checkpoint)
    model: LoggedModel | None = None
    with runs.refusals.passing(f"the model of {version.checkpoint}"):
        model = model_of(runs, checkpoint)
    return model  # noqa: RET504 (the block may end without a value)


def _key(version: ModelVersion) -> tuple[str, str]:
    """What tells a version from all others, also of another storage under the same name."""
    return version.run, version.checkpoint_digest


def _known(client: MlflowClient, model: str) -> dict[tuple[str, str], str]:
    """MLflow's numbers of the versions that evertrain has registered, by their keys."""
    found = all_pages(partial(client.search_model_versions, f"name='{model}'"))
    ours = [one for one in found if one.tags.keys() >= {_RUN_TAG, DIGEST_TAG}]
    return {(one.tags[_RUN_TAG], one.tags[DIGEST_TAG]): str(one.version) for one in ours}
