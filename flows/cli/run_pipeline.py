"""Runs the retrain flow from the command line, in this process."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from evertrain_flows.cli import prefect_server
from evertrain_flows.cli.output.terminal import Screen, complain, say, say_if_watched
from evertrain_flows.databases import create_tracking_database
from evertrain_flows.defaults import HOME, default_storage
from evertrain_flows.flow_runs.endings import end_warning
from evertrain_flows.parameters import RetrainParameters, new_run_name
from evertrain_flows.timing import TIMING
from evertrain_tasks.driver_session.session import Session, Stages, open_session, stopped
from train_core.client.driver_handle import end_status
from train_core.client.runs import refuse_driven
from train_core.config import LOCAL
from train_core.errors import EvertrainError, NothingBegunError, StageError, UserCodeError
from train_core.policy.end_status import EndStatus
from train_core.requests import Prepared
from train_core.results import Report
from train_core.storage.objects.retry_policy import SHORT
from train_core.storage.records.names import REPORT_JSON, check_run_name
from train_core.storage.run_folder import RunFolder
from train_core.storage.runs_of_storage import is_training_finished
from train_core.text.log_lines import warning_in

if TYPE_CHECKING:
    from evertrain_flows.flow_runs.prefect_engine import FlowThread


def run_pipeline(parameters: RetrainParameters, *, verbose: bool) -> None:
    """Run the whole pipeline, showing where it is, and print the outcome.

    The driver starts first, then Prefect, side by side; bad input is refused before any flow run
    exists. Raises EvertrainError.
    """
    parameters = parameters.named(new_run_name(parameters.workload))
    check_run_name(parameters.run)
    folder = RunFolder(parameters.storage, parameters.run)
    if parameters.ray_address == LOCAL:
        # Before any process starts. A run that is driven on a cluster is attached to.
        refuse_driven(folder)
    prefect_server.configure(verbose=verbose)
    create_tracking_database(parameters.tracked_at())
    # The libraries load for seconds before the flow's first line.
    say_if_watched(f"preparing run {parameters.run}")
    log = Path(HOME, "logs", f"{parameters.run}.log").absolute()
    with saying_what_next(folder, log), open_session(parameters.request()) as session:
        session.log.listen(LogFile(log))
        only_checks = parameters.dry_run and not parameters.trainable.trains_in_dry_run
        if parameters.skip_unchanged or only_checks:
            # Before Prefect is loaded: what begins no run gets no flow run.
            try:
                _prepared(session).check_begun()
            except NothingBegunError as error:
                # `say` would show the line breaks of a plan as escapes.
                say(*str(error).split("\n"))
                return
        with prefect_server.warming_up() as warming:
            prepared = _prepared(session)
            warming.join()
        _run_flow(parameters, session, resumed=prepared.resumed, verbose=verbose)


def _prepared(session: Session) -> Prepared:
    try:
        return session.prepared()
    except KeyboardInterrupt:
        complain("stopping")
        raise


def _run_flow(
    parameters: RetrainParameters, session: Session, *, resumed: bool, verbose: bool
) -> None:
    # Imported late: Prefect's import takes longer than the driver's start.
    from evertrain_flows.cli.output.progress import TerminalProgress
    from evertrain_flows.cli.output.summary import print_summary
    from evertrain_flows.driving import as_functions
    from evertrain_flows.flow_runs.prefect_engine import FlowThread
    from evertrain_flows.retrain import retrain, stages
    from evertrain_tasks.prefect_server.connection import ServerConnection

    screen = Screen()
    folder = RunFolder(parameters.storage, parameters.run)
    screen.line(first_line(folder) if resumed else f"new run {parameters.run}")
    with (
        ServerConnection(session.log.add_warning) as session.server,
        TerminalProgress(session, screen, plain=verbose),
    ):
        flow = None
        if session.server.wait_for_answer():
            flow = FlowThread(session, lambda: retrain(parameters, return_state=True))
        if flow is None or not verbose:
            # With --verbose Prefect prints the warnings itself.
            session.log.listen(partial(show_warnings, screen))
        report: Report = outcome_of(session, flow, partial(stages, as_functions))
    if verbose:
        ended_s = time.time() - session.began_at
        screen.line(f"the flow has ended {ended_s:.1f} s after the start")
    print_summary(report, folder.store.uri(REPORT_JSON), screen)


def first_line(folder: RunFolder) -> str:
    """What a command that continues the run says first."""
    newest = folder.newest()
    if newest is None:
        where = ""
    elif is_training_finished(newest, folder.newest_request().config):
        where = ", whose training has ended: only the stages after it are run"
    else:
        where = f" after step {newest.step}"
    return f"continuing run {folder.name}{where}"


def outcome_of(session: Session, flow: FlowThread | None, stages: Stages) -> Any:
    """What the stages return, once Prefect has recorded the end, or its server does not answer.

    `stages` are those that run if Prefect's engine does not begin its own.
    """
    from evertrain_flows.flow_runs.prefect_engine import begin

    try:
        begin(session, flow, stages)
        result = session.thread.result()
        session.close()
        return result
    except KeyboardInterrupt:
        session.close(EndStatus.KILLED)
        session.thread.wait_until_ended(TIMING.stages_end_s)
        raise stopped(session.request) from None
    except BaseException as error:
        session.close(end_status(type(error)))
        raise
    finally:
        _await_report(session, flow)


def _await_report(session: Session, flow: FlowThread | None) -> None:
    """Let Prefect's engine report the end, and warn if it cannot."""
    from evertrain_flows.flow_runs.prefect_engine import await_prefect

    is_reported = flow is not None and await_prefect(session, flow) and flow.has_ended
    if warning := end_warning(
        session.request.run,
        has_flow_run=flow is not None,
        is_reported=is_reported,
        failure=flow.failure if flow else "",
        server_answers=session.server is not None and session.server.answers,
    ):
        session.log.add_warning(warning)
    if flow is None or not flow.has_ended:
        prefect_server.prefect_is_lost.set()


def show_warnings(screen: Screen, line: str) -> None:
    """Show the warning that a line of the driver's log has, if it has one."""
    if warning := warning_in(line):
        screen.line(f"warning: {warning}", "yellow")


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
def saying_what_next(folder: RunFolder, log: Path, command: str = "") -> Iterator[None]:
    """Add to a StageError the address of the driver's log, and the command that goes on.

    An empty one continues the run.
    """
    try:
        yield
    except StageError as error:
        # A driver that dies at once leaves no log.
        summary = f"{error.summary} (log: {log})" if log.exists() else error.summary
        # A storage that is away now does not hide the error.
        with suppress(EvertrainError, OSError):
            if isinstance(error, UserCodeError) and folder.with_retries(SHORT).exists():
                elsewhere = folder.storage != default_storage()
                where = f" --storage {shlex.quote(folder.storage)}" if elsewhere else ""
                command = command or f"`evertrain runs resume {folder.name}{where}`"
                summary += f". Correct the code: {command} goes on"
        raise StageError(error.stage, summary, error.traceback) from error
