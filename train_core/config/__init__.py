"""What a training is asked to do: one frozen, typed value, checked where it is made.

`TrainConfig` is the whole of it: it is what `fit` takes, what `run.json` records and what the
flow's parameters extend. A field whose schema says `may_change` can be given another value
when an unfinished run is continued; every other field decides the numbers and may not.

A new parameter is a field of one of the groups: in `training.py` the workload, the length, the
steps, the monitored metric and the first weights; in `checkpoints.py` when checkpoints are written
and which are kept; in `resources.py` the workers and where they run. Nothing else has to change:
the flow, the command line and `deployments/prefect.yaml` take their parameters from here.
"""

from train_core.config.options import MAY_CHANGE
from train_core.config.resources import LOCAL, available_cpus, loopback_interface
from train_core.config.train_config import TrainConfig
from train_core.config.training import WorkloadName

__all__ = [
    "LOCAL",
    "MAY_CHANGE",
    "TrainConfig",
    "WorkloadName",
    "available_cpus",
    "loopback_interface",
]
