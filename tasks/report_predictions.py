"""The report task of a batch inference: its outcome in the log, in Prefect and in MLflow."""

from __future__ import annotations

from prefect import task

from evertrain_tasks.driver_session.session import session_of
from evertrain_tasks.driver_session.session_log import run_logger
from evertrain_tasks.report.artifacts import new_artifact, show
from evertrain_tasks.report.escaped_markdown import code
from evertrain_tasks.retries import OPTIONS, cancelled_if_stopped
from train_core.client.isolated import mirror_predictions
from train_core.errors import EvertrainError
from train_core.requests import Request
from train_core.results import PredictionsResult
from train_core.storage.run_folder import RunFolder
from train_core.text.shown_text import shown

_REASON_CHARS = 300


@task(name="report", task_run_name="report {request.run}", **OPTIONS)
@cancelled_if_stopped
def report_predictions(request: Request, predictions: PredictionsResult, tracking_uri: str) -> None:
    """Log the predictions' address, and show it in Prefect and MLflow if they answer."""
    session = session_of(request)
    run_logger().info(
        "%d rows of %s, scored by %s of run %s: %s",
        predictions.num_rows,
        shown(predictions.source),
        predictions.checkpoint.name,
        request.run,
        shown(predictions.uri),
    )
    page = predictions_markdown(request.run, predictions)
    show(session, new_artifact("markdown", "predictions", page, f"Predictions of {request.run}"))
    if not tracking_uri:
        return
    folder = RunFolder(request.storage, request.run)
    try:
        mirror_predictions(folder, predictions, tracking_uri)
    except EvertrainError as error:
        reason = str(error).splitlines()[0][:_REASON_CHARS]
        session.log.add_warning(
            f"MLflow does not show the predictions ({reason}): `evertrain mirror {request.run}` "
            "sends what it lacks of the run, as soon as it answers"
        )


def predictions_markdown(run: str, predictions: PredictionsResult) -> str:
    """A batch inference as a table in Markdown."""
    facts = {
        "predictions": code(predictions.uri),
        "rows": f"{predictions.num_rows}",
        "files": f"{len(predictions.files)}",
        "run": code(run),
        "checkpoint": code(predictions.checkpoint.name),
        "input": code(predictions.source),
        "digest of the input": code(predictions.input_digest) if predictions.input_digest else "-",
    }
    rows = "\n".join(f"| {name} | {text} |" for name, text in facts.items())
    return f"# {predictions.num_rows} rows\n\n| | |\n| --- | --- |\n{rows}\n"
