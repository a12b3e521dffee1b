"""What is decided about a flow run that ends, is cancelled, or whose Prefect server is away."""

from __future__ import annotations

import pytest

from evertrain_flows.flow_runs.endings import (
    END_UNREPORTED,
    NO_FLOW_RUN,
    Cancellation,
    begins_without_flow,
    end_warning,
    engine_timeout_s,
    job_outlives_flow,
)
from evertrain_flows.timing import Timing

TIMING = Timing(cancel_s=20, report_end_s=60, report_end_unanswered_s=5)


@pytest.mark.parametrize(
    ("is_deployed", "is_on_cluster", "is_cancelled", "expected"),
    [
        (True, True, False, True),
        # Prefect's server does not answer: the job is left alone.
        (True, True, None, True),
        (True, True, True, False),
        (True, False, None, False),
        (True, False, False, False),
        # A command line's signal asks for the training's end.
        (False, True, None, False),
        (False, True, False, False),
        (False, False, None, False),
    ],
)
def test_a_job_outlives_a_flow_of_a_deployment_that_is_not_cancelled(
    *, is_deployed: bool, is_on_cluster: bool, is_cancelled: bool | None, expected: bool
) -> None:
    outlives = job_outlives_flow(
        is_deployed=is_deployed, is_on_cluster=is_on_cluster, is_cancelled=is_cancelled
    )
    assert outlives is expected


@pytest.mark.parametrize(
    ("engine_is_alive", "server_is_lost", "expected"),
    [(True, False, False), (True, True, True), (False, False, True), (False, True, True)],
)
def test_the_stages_begin_without_a_flow_that_will_not_begin_them(
    *, engine_is_alive: bool, server_is_lost: bool, expected: bool
) -> None:
    begins = begins_without_flow(engine_is_alive=engine_is_alive, server_is_lost=server_is_lost)
    assert begins is expected


@pytest.mark.parametrize(("server_answers", "expected"), [(True, 60), (False, 5)])
def test_the_engine_has_little_time_for_a_server_that_is_away(
    *, server_answers: bool, expected: float
) -> None:
    assert engine_timeout_s(server_answers=server_answers, timing=TIMING) == expected


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        # Each answer and its time; whether the worker's time is over at the last one.
        ([], False),
        ([(0, True)], False),
        ([(0, True), (20, True)], False),
        ([(0, True), (21, True)], True),
        # The server is away: the flow run is as it was.
        ([(0, True), (21, None)], True),
        ([(0, None), (21, None)], False),
        # A cancel that was taken back, and a later one.
        ([(0, True), (10, False), (21, None)], False),
        ([(0, True), (10, False), (11, True), (30, True)], False),
        ([(0, True), (10, False), (11, True), (32, True)], True),
    ],
)
def test_a_cancel_is_overdue_when_the_worker_had_its_time(
    answers: list[tuple[float, bool | None]], *, expected: bool
) -> None:
    cancellation, now = Cancellation(), 0.0
    for now, is_cancelled in answers:
        cancellation = cancellation.observed(is_cancelled=is_cancelled, now=now)
    assert cancellation.is_overdue(now, TIMING) is expected


ERROR = "RuntimeError: no task runner\nand more"


@pytest.mark.parametrize(
    ("has_flow_run", "is_reported", "failure", "server_answers", "expected"),
    [
        (True, True, "", True, ""),
        (True, True, "", False, ""),
        (False, False, "", False, NO_FLOW_RUN),
        (False, False, "", True, NO_FLOW_RUN),
        (True, False, "", True, END_UNREPORTED),
        (True, False, "", False, END_UNREPORTED),
        (True, False, ERROR, False, END_UNREPORTED),
        (True, False, ERROR, True, "Prefect's engine failed: RuntimeError: no task runner"),
    ],
)
def test_a_warning_names_what_prefect_does_not_know(
    *, has_flow_run: bool, is_reported: bool, failure: str, server_answers: bool, expected: str
) -> None:
    warning = end_warning(
        "r",
        has_flow_run=has_flow_run,
        is_reported=is_reported,
        failure=failure,
        server_answers=server_answers,
    )
    assert warning == expected.format(run="r")
