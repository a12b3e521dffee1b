"""The publish task: the report, in the run folder, in MLflow and in Prefect's UI."""

from __future__ import annotations

from prefect import task

from evertrain_tasks.driver_session.session import session_of
from evertrain_tasks.prefect_server.flow_run import shown_flow_run
from evertrain_tasks.report.artifacts import show_report
from evertrain_tasks.retries import OPTIONS, cancelled_if_stopped
from train_core.requests import DriverRequest
from train_core.results import (
    EvaluationResult,
    GateResult,
    PredictionsResult,
    Report,
    Selection,
    TrainResult,
)


@task(name="publish", task_run_name="publish {request.run}", **OPTIONS)
@cancelled_if_stopped
def publish(
    request: DriverRequest,
    trained: TrainResult,
    evaluations: list[EvaluationResult],
    selection: Selection,
    predictions: PredictionsResult | None,
    gate: GateResult | None = None,
) -> Report:
    """Write report.json and MLflow's side, and show the outcome as Prefect artifacts."""
    session = session_of(request)
    with session.running("publish") as driver:
        report = driver.publish(
            trained,
            evaluations,
            selection.best,
            predictions,
            dict(session.seconds),
            gate=gate,
            flow_run=shown_flow_run(),
        )
    show_report(report, session)
    return report
