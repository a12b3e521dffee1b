"""What a training is asked to do: one frozen, typed value, checked where it is made.

`TrainConfig` is the whole of it: it is what `fit` takes, what `run.json` records and what the
flow's parameters extend. A field whose schema says `may_change` can be given another value
when an unfinished run is continued. Every other field decides the numbers, which checkpoint is the
best, or where the training ends, and may not change.

A new parameter is a field of one of the groups:

* `training_options`: the workload, how a step is computed, the first weights
* `checkpoint_options`: the limits of waiting for a checkpoint
* `worker_options`: the workers and where they run
* `function_options`: what only a training function has; if functions obey the new parameter, it is
  named in `_USED` of `trainable`
* a group that a policy decides by stands beside it, in `train_core/policy/`: `LengthOptions` and
  `MonitorOptions` in `stop_reasons`, `BatchOptions` in `samples/steps`, `SaveRules` in
  `checkpoints/save_schedule`, `RetentionOptions` in `checkpoints/retention`, `GateOptions` in
  `champion/gate_options`

What assembles and reads them:

* `train_config`: the whole, and the checks across groups
* `trainable`: what is trained, a workload or a training function, and what differs between them
* `json_text`: JSON objects that somebody typed

The flow, the command line and `deployments/prefect.yaml` take their parameters from here.
"""

from train_core.config.train_config import TrainConfig
from train_core.config.trainable import FunctionTraining, WorkloadTraining
from train_core.config.training_options import WorkloadName
from train_core.config.worker_options import LOCAL, available_cpus, loopback_interface
from train_core.policy.options import MAY_CHANGE

__all__ = [
    "LOCAL",
    "MAY_CHANGE",
    "FunctionTraining",
    "TrainConfig",
    "WorkloadName",
    "WorkloadTraining",
    "available_cpus",
    "loopback_interface",
]
