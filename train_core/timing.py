"""The times of evertrain's library, in seconds: one tree, which the program of a process makes.

How long one operation of a storage may take is the `RetryPolicy` of a store, and what a user may
set is in `config`. `storage/objects/retry_policy.py` lists all numbers that matter on a slow
storage.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from train_core.policy.restarts import RestartRules


@dataclass(frozen=True)
class CoordinationTiming:
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
    shortest_pause_s: float = 0.05
    """Between two polls for the other side's object, at first."""
    longest_pause_s: float = 1.0
    """The same after a long wait."""
    mailbox_poll_interval_s: float = 0.2
    """Between two checks whether the last caller has taken its answers."""

    def pause_s(self, waited_s: float) -> float:
        """How long to wait before the other side's object is looked for again.

        A twentieth of what was waited already, within the limits: it is found that much late.
        """
        return min(max(waited_s / 20, self.shortest_pause_s), self.longest_pause_s)


@dataclass(frozen=True)
class ClusterTiming:
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

    leave_s: float = 2.0
    """How long the others may take to leave an attempt that a worker's death has broken."""

    spare_after_s: float = 30.0
    """How long a training has run when a spare is started: a short one is not worth it."""
    spare_left_s: float = 60.0
    """How long it must still go on, as far as is known."""

    # The nodes of a cluster.
    nodes_poll_s: float = 5.0
    """Between two checks whether missing nodes have joined."""


@dataclass(frozen=True)
class FunctionTiming:
    """How long what runs a training function waits, and how often it polls."""

    controller_poll_s: float = 0.25
    """Between two polls of the workers by Ray's controller, which sets 2 by itself.

    Every report waits for one, and the death of a worker is found by one.
    """
    long_wait_s: float = 60.0
    """A wait for another rank, after which a rank that calls something else is looked for."""
    wait_told_s: float = 30.0
    """A wait for another rank, after which a warning says who waits for whom."""
    follower_poll_s: float = 0.05
    """Between two looks whether who follows the training has taken what it waits for."""
    sigterm_poll_s: float = 0.5
    """Between two checks by a worker whether it got SIGTERM."""
    last_live_s: float = 1.0
    """For live.json to be written for the last time."""
    validation_poll_s: float = 1.0
    """Between two checks whether a checkpoint awaits a validation, or has got it."""
    validation_end_s: float = 5.0
    """For a validation that is broken off."""


@dataclass(frozen=True)
class SaveTiming:
    """How long saving waits, and for what."""

    retry_s: float = 5.0
    """How soon after a checkpoint failed the next one is tried."""
    insist_s: float = 600.0
    """How long to retry a checkpoint that has a validation: ranks may wait in a collective."""
    commit_timeout_s: float = 600.0
    """How long rank 0 waits for the other ranks' files when its own are stored."""
    close_timeout_s: float = 10.0
    """How long a checkpoint in flight may take when the training ends with an error."""


@dataclass(frozen=True)
class StopTiming:
    """The times of a stop, in seconds."""

    poll_s: float = 1.0
    """Between two polls of a rank for a request in the run folder."""
    follower_poll_s: float = 0.02
    """Between two looks whether who follows the training has taken what it waits for."""
    driver_poll_s: float = 0.25
    """The same in the driver's store: a rank in no collective learns there that another died."""
    end_s: float = 3.0
    """Seconds of `grace_s` kept for ending when saving failed; at most half of it."""
    close_s: float = 0.5
    """How long a rank that gave up saving waits for each thread that a storage blocks."""
    leave_s: float = 1.5
    """The same for a rank that leaves an attempt that another one's death has broken.

    It leaves the rest of `ClusterTiming.leave_s` for all else.
    """

    def time_to_save_s(self, grace_s: float) -> float:
        """How long after a request to end the ranks try to save."""
        return max(grace_s - self.end_s, grace_s / 2)


@dataclass(frozen=True)
class TrackingTiming:
    """The times of mirroring, in seconds."""

    poll_s: float = 1.0
    """How often the sender is asked for something new."""
    sample_s: float = 10.0
    """How often the machine's load is measured."""
    max_backoff_s: float = 60.0
    """How rarely an attempt is made in a long outage."""
    down_after_s: float = 5.0
    """After so long an outage, `flush` and `close` wait no longer."""
    check_s: float = 15.0
    """How long `check` waits for the server's first answer."""
    flush_s: float = 60.0
    """How long `flush` waits by default."""
    close_s: float = 30.0
    """How long `close` waits by default."""
    catch_up_s: float = 3600.0
    """How long it may take to send the whole history of a run."""


@dataclass(frozen=True)
class CallerTiming:
    """Intervals and limits of a caller of a job, in seconds."""

    cluster_wait_s: float = 60.0
    """For a cluster that does not answer, if it had a job of the run before."""
    job_poll_interval_s: float = 3.0
    """Between two questions to Ray whether a cluster is there, or a job has ended."""
    silent_s: float = 60.0
    """A job counts as dead when its heartbeat stands still, and Ray says nothing, for so long."""
    last_lines_s: float = 1.5
    """For the end of a job's log: Ray reads it once a second."""


@dataclass(frozen=True)
class Timing:
    """The times of a process, and how often a driver begins again.

    The program of a process makes one and hands on the parts.
    """

    coordination: CoordinationTiming = field(default_factory=CoordinationTiming)
    """Of leases and mailboxes, which all processes of a run share."""
    cluster: ClusterTiming = field(default_factory=ClusterTiming)
    """Of the workers, and of the cluster that they are on."""
    functions: FunctionTiming = field(default_factory=FunctionTiming)
    """Of training functions, which Ray Train runs."""
    saving: SaveTiming = field(default_factory=SaveTiming)
    """Of checkpoints that are stored."""
    stopping: StopTiming = field(default_factory=StopTiming)
    """Of a rank that is asked to stop."""
    tracking: TrackingTiming = field(default_factory=TrackingTiming)
    """Of what is sent to a tracker."""
    callers: CallerTiming = field(default_factory=CallerTiming)
    """Of who calls a driver that is a job of a cluster."""
    # A training.
    restarts: RestartRules = field(default_factory=RestartRules)
    report_poll_s: float = 0.25
    """Between two looks for a new report, while somebody waits for one."""
    stop_poll_s: float = 1.0
    """How often the run folder is looked at for a request to stop."""
    orphans_after_s: float = 5.0
    """How long the ranks train before what an attempt before left is deleted."""
    # The driver's process.
    ray_poll_interval_s: float = 1.0
    """Between two checks that Ray lives."""
    rehearsal_s: float = 60.0
    """For the rehearsal of a workload, which begins nothing more after half of it."""
    nodes_wait_s: float = 60.0
    """For the nodes of a cluster that was started again, if the run was there before."""
    # The job.
    first_call_wait_s: float = 20.0
    """For the call that the job was started with."""
    first_call_poll_interval_s: float = 1.0
    late_s: float = 2.0
    """If heartbeats are read later than they were due by more than this, the storage was away."""
    linger_s: float = 60.0
    """For a caller, when none lives and nothing is left to do."""
    cut_off_s: float = 600.0
    """For a storage that takes no answer, when nothing else is left to do."""
    stages_end_s: float = 2.0
    """For the answers of stages that `close` has ended."""
    last_heartbeat_s: float = 2.0
    """For a heartbeat that is being sent."""
    answer_taken_s: float = 10.0
    """For the last caller to take its last answer."""


TIMING = Timing()

UPKEEP = CoordinationTiming(standstill_s=60.0)
"""For `mirror`, `prune` and `delete`, which can wait: a storage that is away from the holder alone,
for less than that, shall not cost a training."""
