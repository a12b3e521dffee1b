"""Runs the batch inference flow from the command line, in this process."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from evertrain_flows.cli import prefect_server
from evertrain_flows.cli.output.terminal import Screen, say, say_if_watched
from evertrain_flows.cli.run_pipeline import LogFile, outcome_of, saying_what_next, show_warnings
from evertrain_flows.defaults import HOME, tracking_uri_of
from evertrain_tasks.driver_session.session import open_session
from train_core.client.scoring import check_output, scoring_request
from train_core.policy.logins import hide_logins
from train_core.requests import KeptColumns
from train_core.results import PredictionsResult
from train_core.storage.run_folder import RunFolder


def run_inference(
    infer_input: str,
    *,
    storage: str,
    run: str,
    checkpoint: str,
    workload: str,
    keeps: KeptColumns,
    output: str,
    ray_address: str,
    verbose: bool,
) -> None:
    """Score data and print where the predictions are. Raises EvertrainError.

    The driver starts first, then Prefect, side by side; bad input is refused before any flow run
    exists.
    """
    request, summary = scoring_request(
        infer_input,
        storage=storage,
        run=run,
        checkpoint=checkpoint,
        workload=workload,
        keeps=keeps,
    )
    check_output(output)
    if ray_address:
        config = request.config.model_copy(update={"ray_address": ray_address})
        request = request.model_copy(update={"config": config})
    folder = RunFolder(storage, request.run)
    tracking_uri = tracking_uri_of(folder, None)
    prefect_server.configure(verbose=verbose)
    by = f"{summary.name} of run {request.run}"
    say_if_watched(f"preparing {request.model + ', ' if request.model else ''}{by}")
    log = Path(HOME, "logs", f"{request.run}-infer.log").absolute()
    again = "then the same command"
    with saying_what_next(folder, log, again), open_session(request) as session:
        session.log.listen(LogFile(log))
        with prefect_server.warming_up() as warming:
            session.prepared()
            warming.join()
        # Imported late: Prefect's import takes longer than the driver's start.
        from evertrain_flows.batch_inference import batch_inference, stages
        from evertrain_flows.driving import as_functions
        from evertrain_flows.flow_runs.prefect_engine import FlowThread
        from evertrain_tasks.prefect_server.connection import ServerConnection

        flow = None
        with ServerConnection(session.log.add_warning) as session.server:
            if session.server.wait_for_answer():
                given = {
                    "run": request.model or request.run,
                    "checkpoint": summary.name,
                    "infer_input": infer_input,
                    "storage": storage,
                    "ray_address": ray_address,
                    "id_column": keeps.id_column,
                    "columns": list(keeps.columns),
                    "output": output,
                }
                flow = FlowThread(session, lambda: batch_inference(**given, return_state=True))
            if flow is None or not verbose:
                session.log.listen(partial(show_warnings, Screen()))
            without_prefect = partial(stages, as_functions, summary, output, tracking_uri)
            predictions: PredictionsResult = outcome_of(session, flow, without_prefect)
    say(*_told(predictions, hide_logins(infer_input), by))


def _told(found: PredictionsResult, source: str, by: str) -> list[str]:
    """The outcome in lines, the last of which is the predictions' address."""
    if not found.num_rows:
        return ["nothing to score: the input has no rows", f"predictions: {found.uri}"]
    lines = [f"{found.num_rows:,} rows of {source}, scored by {by}"]
    if found.without_prediction:
        lines.append(f"{found.without_prediction:,} of them have no prediction: the model gave NaN")
    return [*lines, f"predictions: {found.uri}"]
