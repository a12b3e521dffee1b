"""The seconds by which processes that share a run judge one another.

`storage/objects/retry_policy.py` lists all numbers that matter on a slow storage.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Timing:
    """Intervals and limits of leases and mailboxes, in seconds. All processes of a run share them.

    How long one operation of the storage may take is the `RetryPolicy` of a store.
    """

    # The lease of a run.
    heartbeat_s: float = 2.0
    """Between two heartbeats of a lease's holder."""
    standstill_s: float = 10.0
    """A holder elsewhere whose heartbeat has not moved for so long is dead."""
    slow_reads: int = 3
    """Where a read or a write is slow, the standstill is longer by so many of the slowest."""
    dying_grace_s: float = 3.0
    """For the old driver of a killed program, on this machine, to notice and to end."""
    lease_poll_interval_s: float = 0.2
    """Between two polls of a lease that is waited for, or of heartbeats that may stand still."""

    # The mailbox of a job.
    mailbox_heartbeat_s: float = 5.0
    """Between two heartbeats of a caller, or of a job."""
    mailbox_standstill_s: float = 12.0
    """A caller whose heartbeat has not moved for so long is gone; so is a job that only scores."""
    shortest_pause_s: float = 0.1
    """Between two polls for the other side's object, at first."""
    longest_pause_s: float = 1.0
    """The same after a long wait."""
    mailbox_poll_interval_s: float = 0.2
    """Between two checks whether the last caller has taken its answers."""

    def pause_s(self, waited_s: float) -> float:
        """How long to wait before the other side's object is looked for again.

        A tenth of what was waited already, within the limits: it is found a tenth of the time late.
        """
        return min(max(waited_s / 10, self.shortest_pause_s), self.longest_pause_s)


TIMING = Timing()

UPKEEP = Timing(standstill_s=60.0)
"""For `mirror`, `prune` and `delete`, which can wait: a storage that is away from the holder alone,
for less than that, shall not cost a training."""
