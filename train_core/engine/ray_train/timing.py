"""The times of training functions, in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """How long what runs a training function waits, and how often it polls."""

    controller_poll_s: float = 0.25
    """Between two polls of the workers by Ray's controller, which sets 2 by itself.

    Every report waits for one, and the death of a worker is found by one.
    """
    long_wait_s: float = 60.0
    """A wait for another rank, after which a rank that calls something else is looked for."""
    last_live_s: float = 1.0
    """For live.json to be written for the last time."""
    validation_poll_s: float = 1.0
    """Between two checks whether a checkpoint awaits a validation, or has got it."""
    validation_end_s: float = 5.0
    """For a validation that is broken off."""


TIMING = Timing()
