"""Runs the retrain flow from the command line, in this process."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from flows.cli import prefect_server
from flows.databases import create_tracking_database
from flows.defaults import HOME
from flows.parameters import RetrainParameters, new_run_name
from tasks.session import Session, Stages, open_session, stopped
from train_core.client.driver import end_status
from train_core.client.runs import refuse_driven
from train_core.config import LOCAL
from train_core.errors import StageError, UnchangedError
from train_core.log_lines import warning_in
from train_core.requests import Prepared
from train_core.results import Report
from train_core.storage.records.names import REPORT_JSON, check_run_name
from train_core.storage.run_folder import RunFolder

if TYPE_CHECKING:
    from rich.console import Console

    from flows.driving import FlowThread


def run_pipeline(parameters: RetrainParameters, *, verbose: bool) -> None:
    """Run the whole pipeline, showing where it is, and print the outcome.

    The driver starts first, then Prefect, side by side; bad input is told before any flow run
    exists. Raises EvertrainError.
    """
    parameters = parameters.named(new_run_name(parameters.workload))
    check_run_name(parameters.run)
    if parameters.ray_address == LOCAL:
        # Before anything is started; on a cluster it is attached to.
        refuse_driven(RunFolder(parameters.storage, parameters.run))
    prefect_server.configure(verbose=verbose)
    create_tracking_database(parameters.tracked_at())
    if sys.stderr.isatty():
        # The libraries load for seconds before the flow's first line.
        sys.stderr.write(f"preparing run {parameters.run}\n")
    log = Path(HOME, "logs", f"{parameters.run}.log").absolute()
    with _naming_log(log), open_session(parameters.request()) as session:
        session.listen(LogFile(log))
        # Before Prefect is loaded: without anything new there is no flow run.
        if parameters.skip_unchanged and (run := _prepared(session).unchanged_since):
            sys.stdout.write(str(UnchangedError(run)) + "\n")
            return
        with prefect_server.warming_up() as warming:
            prepared = _prepared(session)
            warming.join()
        _run_flow(parameters, session, resumed=prepared.resumed, verbose=verbose)


def _prepared(session: Session) -> Prepared:
    try:
        return session.prepared()
    except KeyboardInterrupt:
        sys.stderr.write("evertrain: stopping\n")
        raise


def _run_flow(
    parameters: RetrainParameters, session: Session, *, resumed: bool, verbose: bool
) -> None:
    # Imported late: Prefect's import takes longer than the driver's start.
    from rich.console import Console

    from flows.cli.progress import TerminalProgress
    from flows.cli.summary import print_summary
    from flows.driving import FlowThread, as_functions
    from flows.retrain import retrain, stages
    from tasks.server.connection import ServerConnection

    console = Console()
    folder = RunFolder(parameters.storage, parameters.run)
    checkpoints = folder.checkpoints() if resumed else []
    after = f" after step {checkpoints[-1].step}" if checkpoints else ""
    kind = "continuing" if resumed else "new"
    console.print(f"{kind} run {parameters.run}{after}", highlight=False)
    with (
        ServerConnection(session.tell) as session.server,
        TerminalProgress(session, console, plain=verbose),
    ):
        flow = None
        if session.server.check_patiently():
            flow = FlowThread(session, lambda: retrain(parameters, return_state=True))
        if flow is None or not verbose:
            # Where Prefect prints all, it prints them, too.
            session.listen(partial(_show_warning, console))
        report = _outcome(session, flow, partial(stages, parameters, as_functions))
    if verbose:
        ended_s = time.time() - session.began_at
        console.print(f"the flow has ended {ended_s:.1f} s after the start", highlight=False)
    print_summary(report, folder.store.uri(REPORT_JSON), console)


def _outcome(session: Session, flow: FlowThread | None, stages: Stages) -> Report:
    """What the stages come to, when Prefect knows it, too, or its server does not answer.

    `stages` are those that run if Prefect's engine does not come to its own.
    """
    from flows.driving import ENDS_WITHIN_S, NOT_BEGUN, NOT_TOLD, await_prefect, begin

    try:
        begin(session, flow, stages)
        report: Report = session.outcome()
        session.close()
        return report
    except KeyboardInterrupt:
        session.close("KILLED")
        session.wait_until_ended(ENDS_WITHIN_S)
        raise stopped(session.request) from None
    except BaseException as error:
        session.close(end_status(type(error)))
        raise
    finally:
        if flow is None:
            session.tell(NOT_BEGUN.format(run=session.request.run))
        elif not (await_prefect(session, flow) and flow.has_ended):
            answers = session.server is not None and session.server.answers
            # Where its server is there, the engine failed for a reason of its own.
            failed = f"Prefect's engine failed: {flow.failure.partition(chr(10))[0]}"
            is_own = bool(answers and flow.failure)
            session.tell(failed if is_own else NOT_TOLD.format(run=session.request.run))
        if flow is None or not flow.has_ended:
            prefect_server.prefect_is_lost.set()


def _show_warning(console: Console, line: str) -> None:
    if said := warning_in(line):
        text = f"warning: {said}"
        console.print(text, style="yellow", markup=False, highlight=False, soft_wrap=True)


class LogFile:
    """Appends lines to a local file, which is created with the first one."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __call__(self, line: str) -> None:
        """Append a line."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a") as file:
            file.write(line + "\n")


@contextmanager
def _naming_log(log: Path) -> Iterator[None]:
    """Say in a StageError where the driver's log is."""
    try:
        yield
    except StageError as error:
        summary = f"{error.summary} (log: {log})"
        raise StageError(error.stage, summary, error.traceback) from error
