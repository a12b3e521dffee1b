"""The times of workers and clusters, in seconds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """How long to wait for workers and resources of a cluster, and how often to poll them."""

    # The number of workers.
    poll_s: float = 1.0
    """Between two polls of the cluster's nodes and their free resources."""
    settle_s: float = 5.0
    """How long the resources of ended workers may take to become free."""
    grow_after_s: float = 10.0
    """How long more workers must fit before another attempt begins with them."""
    warn_every_s: float = 60.0
    """Between two warnings that the fewest workers do not fit."""
    last_poll_s: float = 5.0
    """How long the attempt's end waits for a poll of the cluster that is under way."""

    # The workers of a pool.
    start_s: float = 300.0
    """How long workers may take to start; those that hang, or cannot be placed, are given up."""
    placed_s: float = 1.0
    """How long Ray may take to say whether the workers have what they reserve."""
    least_silence_s: float = 30.0
    """The least time without an answer after which a worker counts as dead.

    One that loads libraries on a busy machine does not answer for a while.
    """

    # Calls on workers.
    call_poll_s: float = 1.0
    """Between two checks whether the calls are to end."""
    ping_every_s: float = 5.0
    """Between two pings of a worker."""
    answer_s: float = 10.0
    """How long a living worker may take to answer a ping, on a busy machine."""
    failures_s: float = 1.0
    """How long to wait, after a failure, for others that follow from the same cause."""

    # The nodes of a cluster.
    nodes_poll_s: float = 5.0
    """Between two checks whether missing nodes have joined."""


TIMING = Timing()
