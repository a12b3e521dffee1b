"""Filters for the messages of Prefect's background services while its server is away."""

from __future__ import annotations

import logging
from collections.abc import Callable

from prefect.exceptions import CancelledRun


def quiet_prefects_services() -> None:
    """Keep Prefect's background services from printing each event and line that they cannot send.

    The connection warns once that the server is lost.
    """
    # "--- Error logging to API ---" for each batch of lines.
    logging.raiseExceptions = False
    # Filters stay where Prefect sets its loggers up anew, which levels do not. The services log
    # whole events; two of them use loggers of their own names.
    for name in (
        "prefect._internal.concurrency",
        "prefect.events.clients",
        "prefect.concurrency",
        "prefect.FlowRunSuspendingObserver",
        "EventsWorker",
        "APILogWorker",
    ):
        _add_filter(name, _is_urgent)
    # asyncio logs an error of the observer's task, too.
    _add_filter("asyncio", _is_no_observer)
    for name in ("prefect.flow_runs", "prefect.task_runs"):
        # A flow run goes on though it could not renew its slot under its deployment's concurrency
        # limit.
        _add_filter(name, _is_no_renewal)
        _add_filter(name, _is_no_traceback_of_a_cancel)


def _add_filter(logger: str, keeps: Callable[[logging.LogRecord], bool]) -> None:
    filtered = logging.getLogger(logger)
    if keeps not in filtered.filters:
        filtered.addFilter(keeps)


def _is_urgent(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.CRITICAL


def _is_no_observer(record: logging.LogRecord) -> bool:
    return "FlowRunSuspendingObserver" not in record.getMessage()


def _is_no_renewal(record: logging.LogRecord) -> bool:
    return not str(record.msg).startswith("Concurrency lease renewal failed")


def _is_no_traceback_of_a_cancel(record: logging.LogRecord) -> bool:
    """Log a cancel as information: Prefect's engine logs it as an error, and with a traceback."""
    if record.getMessage().startswith("Finished in state Cancelled"):
        record.levelno, record.levelname = logging.INFO, logging.getLevelName(logging.INFO)
    return not (record.exc_info and isinstance(record.exc_info[1], CancelledRun))
