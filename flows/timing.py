"""The seconds that flows and the command line wait. Imports nothing: Prefect is loaded late."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Timeouts and intervals of the flows and of the command line, in seconds."""

    # The end of a flow run.
    poll_interval_s: float = 0.2
    """Between two checks of a thread that is waited for."""
    server_back_s: float = 3.0
    """For a server that is away when the stages have ended, before the end is reported."""
    stages_end_s: float = 10.0
    """For the stages to end once their driver is closed."""
    report_end_s: float = 60.0
    """For Prefect's engine to report the end to a server that answers."""
    report_end_unanswered_s: float = 5.0
    """The same to a server that does not answer."""
    send_s: float = 10.0
    """For Prefect's threads to send their queues before the process exits."""

    # A flow run that is cancelled.
    cancel_poll_interval_s: float = 5.0
    """Between two questions whether the flow run is cancelled."""
    cancel_s: float = 20.0
    """For Prefect's worker to end a flow run that is being cancelled."""

    # The slots of a deployment.
    slot_silence_s: float = 600.0
    """Without a heartbeat or a change of state, until a flow run may be dead: as the automation."""
    slots_settle_s: float = 5.0
    """Between two looks, in which nothing may change of what is freed."""

    # The servers that the command line starts.
    server_start_s: float = 120.0
    """For a server to answer for the first time, beside other work."""
    server_end_s: float = 5.0
    """For the temporary server to store its data and end."""
    server_poll_interval_s: float = 0.1
    """Between two checks of the temporary server."""
    send_without_server_s: float = 0.5
    """As `send_s`, where the server does not answer."""
    ui_poll_interval_s: float = 0.2
    """Between two checks of the servers of `evertrain ui`."""
    mlflow_answer_s: float = 5.0
    """For MLflow to say which experiment has the runs."""

    # The terminal.
    bar_interval_s: float = 0.5
    """Between two updates of the progress bar."""
    line_interval_s: float = 5.0
    """Between two lines of progress where there is no terminal."""


TIMING = Timing()
