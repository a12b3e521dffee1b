"""The retrain flow: train, evaluate, select the best, test it, infer, gate, promote, publish."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from prefect import State, flow, runtime
from prefect.exceptions import TerminationSignal
from prefect.states import Cancelled

from evertrain_flows.databases import create_tracking_database
from evertrain_flows.driving import Start, as_tasks, connected, drive
from evertrain_flows.flow_runs.approval import AwaitsApprovalError, announce_wait, approval_for
from evertrain_flows.flow_runs.crash_loops import announce_schedule, refuse_crash_loop
from evertrain_flows.flow_runs.following import resume_answered
from evertrain_flows.flow_runs.left_running import correct_states, left_running
from evertrain_flows.flow_runs.states import naming_its_end, nothing_begun
from evertrain_flows.parameters import RetrainParameters
from evertrain_tasks.driver_session.session import Session, open_session, stopped
from evertrain_tasks.driver_session.session_log import run_logger
from evertrain_tasks.prefect_server.flow_run import deployment_of_flow_run, shown_flow_run
from evertrain_tasks.prepare import prepare
from evertrain_tasks.report.artifacts import show_job, show_report
from evertrain_tasks.select import select, with_metrics
from evertrain_tasks.stages import task_of
from train_core.datasets.protocols import Split
from train_core.errors import NothingBegunError, StoppedError
from train_core.requests import DriverRequest
from train_core.results import (
    CheckpointSummary,
    EvaluationResult,
    GateResult,
    PredictionsResult,
    Report,
)
from train_core.stages import EVALUATE, GATE, INFER, PROMOTE, PUBLISH, TRAIN
from train_core.storage.records.names import default_run_name


def run_name() -> str:
    """The run's name: the parameter, else one made of workload, scheduled start and id.

    Prefect sets these two when it creates a flow run, and leaves them when the flow is run again.
    Both are in the flow run's context, so no request is made for them.
    """
    requested = RetrainParameters.model_validate(runtime.flow_run.parameters["parameters"])
    return _run_name(requested)


def _run_name(requested: RetrainParameters) -> str:
    # The ids of flow runs that were scheduled together begin alike; their ends are random.
    scheduled, unique = runtime.flow_run.scheduled_start_time, str(runtime.flow_run.id)
    return requested.run or default_run_name(requested.workload, scheduled, unique)


@flow(
    name="retrain",
    flow_run_name=run_name,
    persist_result=True,
    result_serializer="json",
)
@naming_its_end
def retrain(parameters: RetrainParameters) -> Report | State[Report]:
    """Train, choose the best checkpoint on validation, report it on test, infer with it.

    A cancel, SIGINT or SIGTERM leaves a last checkpoint and a cancelled flow run. A job on a
    cluster ends for a cancel only: where only this process is to end, as when its pod is moved, the
    flow crashes, the job goes on, and the flow attaches to it when it is run again.
    """
    named_after = "" if parameters.run else str(runtime.flow_run.id)
    parameters = parameters.named(_run_name(parameters))
    if deployment_of_flow_run():
        parameters = parameters.of_deployment()
    create_tracking_database(parameters.tracked_at())
    request = parameters.request(named_after)
    # Before a driver starts, which would take the run's lease.
    announce_schedule()
    refuse_crash_loop(request)
    report: Report | None = None
    try:
        with open_session(request) as session, connected(session):
            session.log.send_to(run_logger())
            try:
                report = drive(session, partial(stages, as_tasks))
                if session.thread.is_without_flow:
                    # The server was lost before the flow began its stages, and may be back now.
                    show_report(report, session)
            except NothingBegunError as error:
                return nothing_begun(error)
    except AwaitsApprovalError as suspended:
        announce_wait()
        raise suspended.pause from None
    except (KeyboardInterrupt, TerminationSignal, StoppedError) as error:
        # A signal that arrives after the report changes nothing.
        if report is None:
            if isinstance(error, TerminationSignal):
                raise
            return Cancelled(message=str(stopped(request)))
    assert report is not None
    return report


def stages(start: Start, session: Session) -> Report:
    """The stages of a run in their order, each started by `start`.

    Raises NothingBegunError if the request needed no run: nothing has changed since another one
    and `skip_unchanged` is set, or it was a dry run of a training function.
    """
    request, server = session.request, session.server
    if server and start is as_tasks:
        server.ask(lambda client: resume_answered(client, request.storage))
    prepared = start(prepare, request)()
    prepared.check_begun()
    if prepared.job_url:
        show_job(session, prepared.job_url)
    left = None
    if server and start is as_tasks:
        left = server.ask(lambda client: left_running(client, request))
    try:
        return _compute(start, session)
    finally:
        if server and left:
            server.ask(lambda client: correct_states(client, left, request))


def _compute(start: Start, session: Session) -> Report:
    request = session.request
    assert isinstance(request, DriverRequest)
    pipeline = request.pipeline
    assert pipeline.infer_input is not None

    def publish(
        evaluations: list[EvaluationResult],
        best: CheckpointSummary | None,
        predictions: PredictionsResult | None = None,
        gated: GateResult | None = None,
    ) -> Report:
        outcome = PUBLISH.arguments(
            train=trained,
            evaluations=evaluations,
            best=best,
            predictions=predictions,
            gate=gated,
            seconds=dict(session.seconds),
            flow_run=shown_flow_run(),
        )
        return start(task_of(PUBLISH), request, outcome)()

    def evaluating(
        checkpoints: list[CheckpointSummary], split: Split
    ) -> Callable[[], list[EvaluationResult]]:
        measured = EVALUATE.arguments(checkpoints=checkpoints, split=split)
        return start(task_of(EVALUATE), request, measured)

    trained = start(task_of(TRAIN), request, TRAIN.arguments())()
    # A factory's trainer may name another one than the parameters.
    metric, order = trained.monitor, trained.monitor_order
    if not request.config.has_workload:
        # No stage knows what is in a folder that a function reported, if it reported any.
        reported = trained.checkpoints
        return publish([], start(select, reported, metric, order)().best if reported else None)
    evaluations = evaluating(trained.finalists, "validation")()
    selection = start(select, with_metrics(evaluations), metric, order)()
    scored = INFER.arguments(checkpoint=selection.best, source=pipeline.infer_input)
    predicting = start(task_of(INFER), request, scored)
    tested = evaluating([selection.best], "test")()
    predictions = predicting()
    gated = _gate(start, session, selection.best) if pipeline.gate else None
    return publish(evaluations + tested, selection.best, predictions, gated)


def _gate(start: Start, session: Session, best: CheckpointSummary) -> GateResult:
    """Compare the best checkpoint with the champion; it becomes champion if it is better.

    Raises AwaitsApprovalError if a person has to be asked first.
    """
    result = start(task_of(GATE), session.request, GATE.arguments(best=best))()
    while True:
        approval = approval_for(session, result) if start is as_tasks else None
        asked = PROMOTE.arguments(result=result, approval=approval)
        promoted = start(task_of(PROMOTE), session.request, asked)()
        if promoted.decision == result.decision:
            return promoted
        # Another champion was chosen meanwhile, and nobody was asked about that comparison.
        result = promoted
