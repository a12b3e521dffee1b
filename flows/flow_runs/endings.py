"""The decisions about a flow run's end, pure: no clock, no server and no process in here."""

from __future__ import annotations

from dataclasses import dataclass

from evertrain_flows.timing import Timing

END_UNREPORTED = (
    "Prefect does not know that run {run!r} has ended: its server does not answer. The next "
    "retraining that finds the server, or the automation, corrects that"
)
NO_FLOW_RUN = "Prefect has no flow run of run {run!r}: its server did not answer when it began"


def job_outlives_flow(*, is_deployed: bool, is_on_cluster: bool, is_cancelled: bool | None) -> bool:
    """Whether a SIGTERM ends the flow's process only, and its job on the cluster goes on.

    On a command line, which no deployment runs, the signal asks for the training's end. A
    deployment's process may also be ended because its pod is moved: then its job goes on, unless
    the flow run is cancelled. `is_cancelled` is None where Prefect's server does not answer.
    """
    return is_deployed and is_on_cluster and not is_cancelled


def begins_without_flow(*, engine_is_alive: bool, server_is_lost: bool) -> bool:
    """Whether the stages begin outside of the flow run, as Prefect's engine will not begin them."""
    return server_is_lost or not engine_is_alive


def engine_timeout_s(*, server_answers: bool, timing: Timing) -> float:
    """Seconds that Prefect's engine has to report the end of the flow run."""
    return timing.report_end_s if server_answers else timing.report_end_unanswered_s


@dataclass(frozen=True)
class Cancellation:
    """Since when a flow run has been seen as cancelled, by a monotonic clock."""

    since: float | None = None

    def observed(self, *, is_cancelled: bool | None, now: float) -> Cancellation:
        """After one more answer of Prefect's server; None, where it gave none, changes nothing."""
        if is_cancelled is None:
            return self
        if not is_cancelled:
            return Cancellation()
        return self if self.since is not None else Cancellation(now)

    def is_overdue(self, now: float, timing: Timing) -> bool:
        """Whether Prefect's worker had its time to end the flow run, and has not done it."""
        return self.since is not None and now - self.since > timing.cancel_s


def end_warning(
    run: str, *, has_flow_run: bool, is_reported: bool, failure: str, server_answers: bool
) -> str:
    """The warning about facts of an ended run that Prefect does not have; empty if it has all.

    `failure` is the error that Prefect's engine raised, if it did. Where the server answers, the
    engine failed for a reason of its own.
    """
    if not has_flow_run:
        return NO_FLOW_RUN.format(run=run)
    if is_reported:
        return ""
    if failure and server_answers:
        return f"Prefect's engine failed: {failure.partition(chr(10))[0]}"
    return END_UNREPORTED.format(run=run)
