"""The times of the cluster's room, in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """How long workers and resources of a cluster are waited for, and how often it is looked."""

    # The number of workers.
    poll_s: float = 1.0
    """Between two polls of the cluster's nodes and at what is free there."""
    settle_s: float = 5.0
    """How long resources of workers that ended may be on their way back."""
    grow_after_s: float = 10.0
    """How long there has to be room for more, before all begin again with more."""
    warn_every_s: float = 60.0
    """Between two warnings that there is no room."""
    last_poll_s: float = 5.0
    """For a poll of the cluster that is under way when the attempt ends."""

    # The workers of a pool.
    start_s: float = 300.0
    """Workers whose place is gone, or that hang as they start, are given up then."""
    placed_s: float = 1.0
    """For Ray to say whether the workers have what they reserve."""
    least_silence_s: float = 30.0
    """A worker that loads libraries on a busy machine does not answer for a while."""

    # Calls on workers.
    call_poll_s: float = 1.0
    """Between two checks whether somebody wants the calls to end."""
    ping_every_s: float = 5.0
    """Between two questions whether a worker still answers."""
    answer_s: float = 10.0
    """How long a worker that lives may take to answer, on a busy machine."""
    failures_s: float = 1.0
    """After a failure, for those that follow from the same cause."""

    # The nodes of a cluster.
    nodes_poll_s: float = 5.0
    """Between two checks whether nodes that are missing have come."""


TIMING = Timing()
