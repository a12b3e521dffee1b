"""The times of the driver, in seconds.

`storage/objects/retry_policy.py` lists all numbers that matter on a slow storage.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from train_core.engine.cluster.timing import Timing as ClusterTiming
from train_core.engine.ray_train.timing import Timing as FunctionTiming
from train_core.policy.restarts import RestartRules
from train_core.storage.coordination.timing import Timing as CoordinationTiming


@dataclass(frozen=True)
class Timing:
    """Intervals and limits of the driver, and how often it begins again.

    Whatever the driver uses gets its times from here.
    """

    # Those of other packages.
    coordination: CoordinationTiming = field(default_factory=CoordinationTiming)
    """Of leases and mailboxes, which all processes of a run share."""
    cluster: ClusterTiming = field(default_factory=ClusterTiming)
    """Of the workers, and of the cluster that they are on."""
    functions: FunctionTiming = field(default_factory=FunctionTiming)
    """Of training functions, which Ray Train runs."""
    # A training.
    restarts: RestartRules = field(default_factory=RestartRules)
    stop_poll_s: float = 1.0
    """How often the run folder is looked at for a request to stop."""
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
