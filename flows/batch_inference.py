"""The batch inference flow: score new data with a checkpoint of an existing run."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

from prefect import State, flow, runtime
from prefect.states import Cancelled

from evertrain_flows.defaults import default_storage, tracking_uri_of
from evertrain_flows.driving import as_tasks, connected, drive
from evertrain_flows.flow_runs.states import naming_its_end
from evertrain_tasks.driver_session.session import Session, open_session
from evertrain_tasks.driver_session.session_log import run_logger
from evertrain_tasks.infer import infer
from evertrain_tasks.prepare import prepare
from evertrain_tasks.report_predictions import report_predictions
from train_core.client.runs import open_run
from train_core.errors import ConfigError, StoppedError
from train_core.policy.champion.model_names import ModelAddress
from train_core.requests import ScoringRequest
from train_core.results import CheckpointSummary, ModelVersion, PredictionsResult
from train_core.storage.addresses import absolute
from train_core.storage.records.names import LATEST, CheckpointName
from train_core.storage.registered_models.model_registry import ModelRegistry
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_reports import reported_best
from train_core.storage.runs_of_storage import newest_finished

BEST = "best"


@flow(
    name="batch-inference",
    flow_run_name="{run} {checkpoint}",
    persist_result=True,
    result_serializer="json",
)
@naming_its_end
def batch_inference(
    run: str = LATEST,
    checkpoint: str = BEST,
    infer_input: str = "test",
    storage: str = "",
    ray_address: str = "",
    runtime_env: dict[str, Any] | None = None,
    workload: str = "",
) -> PredictionsResult | State[PredictionsResult]:
    """Score `infer_input` with a checkpoint of `run`.

    Args:
        run: The run's name, or `latest`: the newest finished one that is not a dry run, or a
            registered model's version, which decides on the checkpoint, too: models:/NAME@champion,
            models:/NAME/3. An alias is looked up once, and the version is recorded.
        checkpoint: A checkpoint's name, or `best`: the one that the run's report names.
        infer_input: A split's name, or the path or URL of Parquet, a folder of images or IDX.
        storage: The folder of the runs; empty: EVERTRAIN_STORAGE, or .evertrain/runs.
        ray_address: `local` or a running cluster; empty: where the run was trained.
        runtime_env: Ray's, for the workers; None: that of the training, without its `env_vars`.
        workload: `latest` is the newest run of this workload (package.module:Name); empty: of any.
    """
    storage = absolute(storage) if storage else default_storage()
    version = find_version(storage, run)
    if version:
        run, checkpoint = version.run, version.checkpoint
    folder = find_run(storage, run, workload)
    summary = find_checkpoint(folder, checkpoint)
    if version:
        check_version(folder, version)
    config = folder.newest_request().config
    if ray_address:
        config = config.model_copy(update={"ray_address": ray_address})
    if runtime_env is not None:
        config = config.model_copy(update={"runtime_env": runtime_env})
    # No tracking URI: batch inference is no part of the training, whose MLflow run has ended.
    request = ScoringRequest(
        storage=storage,
        run=folder.name,
        config=config,
        infer_input=infer_input,
        model=version.address if version else "",
    )
    tracking_uri = tracking_uri_of(folder, None)
    try:
        with open_session(request) as session, connected(session):
            session.log.send_to(run_logger())
            name_flow_run(session, f"{folder.name} {summary.name}")
            predictions: PredictionsResult = drive(
                session, partial(stages, summary, infer_input, tracking_uri)
            )
    except (KeyboardInterrupt, StoppedError):
        return Cancelled(message="The batch inference was stopped; what it scored is not kept.")
    return predictions


def stages(
    summary: CheckpointSummary, infer_input: str, tracking_uri: str, session: Session
) -> PredictionsResult:
    """The stages of a batch inference in their order, as tasks."""
    request = session.request
    as_tasks(prepare, request)()
    predictions: PredictionsResult = as_tasks(infer, request, summary, infer_input)()
    as_tasks(report_predictions, request, predictions, tracking_uri)()
    return predictions


def find_version(storage: str, address: str) -> ModelVersion | None:
    """The version that a `models:/…` means now; None if `address` is none.

    Raises ConfigError if there is no such version.
    """
    parsed = ModelAddress.parse(address)
    if parsed is None:
        if address.startswith("models:"):
            raise ConfigError(
                f"{address!r} names no version: models:/NAME@champion, or models:/NAME/3"
            )
        return None
    version = ModelRegistry(storage, parsed.name).resolve(parsed)
    run_logger().info("%s is %s", address, version.address)
    return version


def check_version(folder: RunFolder, version: ModelVersion) -> None:
    """Raise ConfigError if the checkpoint is not the one that was registered."""
    if folder.find(version.checkpoint).digest != version.checkpoint_digest:
        raise ConfigError(
            f"{version.checkpoint} of run {version.run!r} is not what was registered as "
            f"{version.address}"
        )


def find_run(storage: str, name: str, workload: str) -> RunFolder:
    """The run called `name`, or the newest finished one of the workload, or of any.

    Raises ConfigError if there is none.
    """
    if name != LATEST:
        return open_run(storage, name).folder
    newest = newest_finished(storage, workload)
    run_logger().info("the newest finished run in %s is %s", storage, newest.name)
    return newest.folder


def name_flow_run(session: Session, name: str) -> None:
    """Name the flow run after run and checkpoint: its parameters may just be `latest`, `best`."""
    flow_run = runtime.flow_run.id
    if session.server and flow_run:
        session.server.show(
            "the flow run's name",
            lambda client: client.set_flow_run_name(UUID(str(flow_run)), name),
        )


def find_checkpoint(folder: RunFolder, name: str) -> CheckpointSummary:
    """The checkpoint called `name`, or the best one. Raises ConfigError if it is not there."""
    if name == BEST:
        best = reported_best(folder)
        if best is None:
            raise ConfigError(
                f"run {folder.name!r} has no report.json, so no best checkpoint yet: "
                "let it finish, or name a checkpoint"
            )
        name = best
    checkpoints = {str(one.name): one for one in folder.scan().good}
    if CheckpointName.parse(name) is None or name not in checkpoints:
        raise ConfigError(
            f"run {folder.name!r} has no checkpoint {name!r}; "
            f"it has {', '.join(checkpoints) or 'none'}"
        )
    return folder.summary(checkpoints[name])
