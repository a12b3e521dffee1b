"""The seconds that tasks and their connection to Prefect's server wait."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Durations and intervals of the tasks, in seconds."""

    request_timeout_s: float = 2.0
    """For one request to Prefect's server."""
    server_poll_interval_s: float = 2.0
    """Between two checks of Prefect's server."""
    server_wait_interval_s: float = 0.5
    """The same while a thread waits for the server."""
    progress_interval_s: float = 5.0
    """Between two updates of a training's progress in Prefect."""
    retry_delay_s: float = 2.0
    """Before a stage that failed is tried again."""
    newest_start_s: float = 60.0
    """A process that has lived for longer when it opens a session was not started for it."""


TIMING = Timing()
