"""The retrain flow: train, evaluate, select the best, test it and infer with it, publish."""

from __future__ import annotations

from uuid import UUID

from prefect import State, flow, get_client, get_run_logger, runtime
from prefect.exceptions import TerminationSignal
from prefect.states import Cancelled, Completed

from flows.deaths import crash_left_running, refuse_endless
from flows.parameters import RetrainParameters, make_tracking_folder, no_new_data
from tasks.artifacts import show_job
from tasks.evaluate import evaluate
from tasks.infer import infer
from tasks.prepare import prepare
from tasks.publish import publish
from tasks.select import select
from tasks.session import Session, open_session
from tasks.train import train
from train_core.config import LOCAL
from train_core.driver import DriverRequest
from train_core.errors import StoppedError, StorageError
from train_core.results import Report
from train_core.storage.names import default_run_name
from train_core.storage.run_folder import RunFolder


def run_name() -> str:
    """The run's name: the one asked for, else one made of workload, scheduled start and id.

    Prefect sets these two when it creates a flow run, and leaves them when the flow is run again.
    Both are at hand here, so its API is not asked.
    """
    asked = RetrainParameters.model_validate(runtime.flow_run.parameters["parameters"])
    # The ids of flow runs that were scheduled together begin alike; their ends are random.
    scheduled, unique = runtime.flow_run.scheduled_start_time, str(runtime.flow_run.id)
    return asked.run or default_run_name(asked.workload, scheduled, unique)


@flow(
    name="retrain",
    flow_run_name=run_name,
    persist_result=True,
    result_serializer="json",
)
def retrain(parameters: RetrainParameters) -> Report | State[Report]:
    """Train, choose the best checkpoint on validation, report it on test, infer with it.

    Who cancels it, or sends SIGINT or SIGTERM, gets a last checkpoint and a cancelled flow run. A
    job on a cluster ends for a cancel only: where only this process is to end, as when its pod is
    moved, the flow crashes, the job goes on, and the flow attaches to it when it is run again.
    """
    named_after = "" if parameters.run else str(runtime.flow_run.id)
    parameters = parameters.named(run_name())
    make_tracking_folder(parameters.tracked_at())
    request = parameters.request(named_after)
    refuse_endless(request)
    is_left: bool | None = None
    try:
        with open_session(request) as session:
            try:
                return _stages(session, parameters)
            except TerminationSignal:
                is_left = goes_on_alone(request)
                if is_left:
                    session.leave()
                raise
    except (KeyboardInterrupt, TerminationSignal, StoppedError) as error:
        if is_left is None and isinstance(error, TerminationSignal):
            # It came while the session was opened or closed.
            is_left = goes_on_alone(request)
        if is_left:
            raise
        return Cancelled(message=str(stopped(request)))


def _stages(session: Session, parameters: RetrainParameters) -> Report | State[Report]:
    request = session.request
    session.log_to(get_run_logger())
    prepared = prepare(request)
    if prepared.unchanged_since:
        return Completed(message=no_new_data(prepared.unchanged_since))
    if prepared.job_url:
        show_job(request, prepared.job_url)
    if prepared.resumed:
        crash_left_running(request)
    trained = train(request)
    evaluations = evaluate(request, trained.finalists, "validation")
    selection = select(evaluations, parameters.monitor, parameters.monitor_order)
    predicting = infer.submit(request, selection.best, parameters.infer_input)
    tested = evaluate(request, [selection.best], "test")
    predictions = predicting.result()
    return publish(request, trained, evaluations + tested, selection, predictions)


def goes_on_alone(request: DriverRequest) -> bool:
    """Whether a SIGTERM ends this process only: a cluster trains, and nobody has cancelled.

    On a command line, which no deployment runs, it is a wish that the training ends.
    """
    if request.config.ray_address == LOCAL or not runtime.deployment.id:
        return False
    try:
        with get_client(sync_client=True) as client:
            state = client.read_flow_run(UUID(str(runtime.flow_run.id))).state
    except Exception as error:  # noqa: BLE001 (whatever the API's client raises)
        get_run_logger().warning("whether the run was cancelled is not known: %s", error)
        return True
    return state is None or not (state.is_cancelling() or state.is_cancelled())


def stopped(request: DriverRequest) -> StoppedError:
    """What is left of a run that was stopped: its newest checkpoint, as far as can be told."""
    try:
        checkpoints = RunFolder(request.storage, request.run).checkpoints()
    except StorageError:
        checkpoints = []
    return StoppedError(request.run, checkpoints[-1].manifest.step if checkpoints else 0)
