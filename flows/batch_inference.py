"""The batch inference flow: score new data with a checkpoint of an existing run."""

from __future__ import annotations

from functools import partial
from typing import Any
from uuid import UUID

from prefect import State, flow, runtime
from prefect.states import Cancelled

from evertrain_flows.defaults import default_storage, tracking_uri_of
from evertrain_flows.driving import Start, as_tasks, connected, drive
from evertrain_flows.flow_runs.states import naming_its_end
from evertrain_tasks.driver_session.session import Session, open_session
from evertrain_tasks.driver_session.session_log import run_logger
from evertrain_tasks.prepare import prepare
from evertrain_tasks.report_predictions import report_predictions
from evertrain_tasks.stages import task_of
from train_core.client.scoring import BEST, check_output, copied, scoring_request
from train_core.errors import StoppedError
from train_core.requests import KeptColumns, ScoringRequest
from train_core.results import CheckpointSummary, PredictionsResult
from train_core.stages import INFER
from train_core.storage.addresses import absolute
from train_core.storage.records.names import LATEST
from train_core.storage.run_folder import RunFolder


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
    id_column: str = "",
    columns: list[str] | None = None,
    output: str = "",
) -> PredictionsResult | State[PredictionsResult]:
    """Score `infer_input` with a checkpoint of `run`.

    Args:
        run: The run's name, or `latest`: the newest finished one that is not a dry run, or a
            registered model's version, which decides on the checkpoint, too: models:/NAME@champion,
            models:/NAME/3. An alias is looked up once, and the version is recorded.
        checkpoint: A checkpoint's name, or `best`: the one that the run's report names.
        infer_input: A split's name, or the path or URL of tables (Parquet, CSV, TSV, JSON lines),
            images or IDX files.
        storage: The folder of the runs; empty: EVERTRAIN_STORAGE, or .evertrain/runs.
        ray_address: `local` or a running cluster; empty: where the run was trained.
        runtime_env: Ray's, for the workers; None: that of the training, without its `env_vars`.
        workload: `latest` is the newest run of this workload (package.module:Name); empty: of any.
        id_column: The column of the input whose values are the predictions' ids; empty: `id` if
            there is one, else file and row.
        columns: Columns of the input that are stored beside the predictions.
        output: An empty folder, a path or URL, to which the predictions are copied from the run
            folder; empty: none.
    """
    storage = absolute(storage) if storage else default_storage()
    keeps = KeptColumns(id_column=id_column, columns=tuple(columns or ()))
    request, summary = scoring_request(
        infer_input,
        storage=storage,
        run=run,
        checkpoint=checkpoint,
        workload=workload,
        keeps=keeps,
    )
    check_output(output)
    run_logger().info(
        "%s of run %s scores%s",
        summary.name,
        request.run,
        f", as {request.model}" if request.model else "",
    )
    changes: dict[str, Any] = {"ray_address": ray_address} if ray_address else {}
    if runtime_env is not None:
        changes["runtime_env"] = runtime_env
    request = request.model_copy(update={"config": request.config.model_copy(update=changes)})
    folder = RunFolder(storage, request.run)
    tracking_uri = tracking_uri_of(folder, None)
    try:
        with open_session(request) as session, connected(session):
            session.log.send_to(run_logger())
            name_flow_run(session, f"{folder.name} {summary.name}")
            predictions: PredictionsResult = drive(
                session, partial(stages, as_tasks, summary, output, tracking_uri)
            )
    except (KeyboardInterrupt, StoppedError):
        return Cancelled(message="The batch inference was stopped; what it scored is not kept.")
    return predictions


def stages(
    start: Start, summary: CheckpointSummary, output: str, tracking_uri: str, session: Session
) -> PredictionsResult:
    """The stages of a batch inference in their order, each started by `start`."""
    request = session.request
    assert isinstance(request, ScoringRequest)
    start(prepare, request)()
    asked = INFER.arguments(checkpoint=summary, source=request.infer_input)
    predictions = start(task_of(INFER), request, asked)()
    start(report_predictions, request, predictions, tracking_uri)()
    return copied(request, predictions, output)


def name_flow_run(session: Session, name: str) -> None:
    """Name the flow run after run and checkpoint: its parameters may just be `latest`, `best`."""
    flow_run = runtime.flow_run.id
    if session.server and flow_run:
        session.server.show(
            "the flow run's name",
            lambda client: client.set_flow_run_name(UUID(str(flow_run)), name),
        )
