"""The public names of `train_core`: what a workload's author, a script or a notebook imports.

They are imported from `train_core` itself; predictors that are ready to use from
`train_core.predictors`. Each name is loaded when it is used, so that
`from train_core import TrainConfig` loads neither torch nor Ray.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train_core.client.checkpoint import Checkpoint
    from train_core.client.checkpoints import export_weights, verify_run
    from train_core.client.diff import compare_runs
    from train_core.client.isolated import mirror_run
    from train_core.client.run import Run
    from train_core.client.run_summaries import list_runs, run_status
    from train_core.client.runs import delete_run, fork_run, open_run, prune_run, stop_run
    from train_core.client.scoring import infer
    from train_core.config import TrainConfig
    from train_core.datasets.arrays import ArrayDataset
    from train_core.datasets.files import DataFile
    from train_core.datasets.images import read_image
    from train_core.datasets.protocols import (
        SPLITS,
        Columns,
        Dataset,
        ShardStream,
        Split,
        Stream,
    )
    from train_core.datasets.tables import (
        read_columns,
    )
    from train_core.errors import DataError
    from train_core.fitting import extend_run, fit
    from train_core.optimizers import CombinedOptimizer
    from train_core.policy.samples.randomness import SampleRandom
    from train_core.policy.samples.sample_order import balanced_order, weighted_order
    from train_core.workload import Batch, Settings, Workload

_HOMES = {
    "ArrayDataset": "train_core.datasets.arrays",
    "Batch": "train_core.workload",
    "Checkpoint": "train_core.client.checkpoint",
    "CombinedOptimizer": "train_core.optimizers",
    "Columns": "train_core.datasets.protocols",
    "DataError": "train_core.errors",
    "DataFile": "train_core.datasets.files",
    "Dataset": "train_core.datasets.protocols",
    "Run": "train_core.client.run",
    "SPLITS": "train_core.datasets.protocols",
    "SampleRandom": "train_core.policy.samples.randomness",
    "Settings": "train_core.workload",
    "ShardStream": "train_core.datasets.protocols",
    "Split": "train_core.datasets.protocols",
    "Stream": "train_core.datasets.protocols",
    "TrainConfig": "train_core.config",
    "Workload": "train_core.workload",
    "extend_run": "train_core.fitting",
    "fit": "train_core.fitting",
    "delete_run": "train_core.client.runs",
    "fork_run": "train_core.client.runs",
    "infer": "train_core.client.scoring",
    "list_runs": "train_core.client.run_summaries",
    "open_run": "train_core.client.runs",
    "read_image": "train_core.datasets.images",
    "read_columns": "train_core.datasets.tables",
    "prune_run": "train_core.client.runs",
    "run_status": "train_core.client.run_summaries",
    "stop_run": "train_core.client.runs",
    "verify_run": "train_core.client.checkpoints",
    "balanced_order": "train_core.policy.samples.sample_order",
    "compare_runs": "train_core.client.diff",
    "export_weights": "train_core.client.checkpoints",
    "mirror_run": "train_core.client.isolated",
    "weighted_order": "train_core.policy.samples.sample_order",
}

__all__ = [
    "SPLITS",
    "ArrayDataset",
    "Batch",
    "Checkpoint",
    "Columns",
    "CombinedOptimizer",
    "DataError",
    "DataFile",
    "Dataset",
    "Run",
    "SampleRandom",
    "Settings",
    "ShardStream",
    "Split",
    "Stream",
    "TrainConfig",
    "Workload",
    "balanced_order",
    "compare_runs",
    "delete_run",
    "export_weights",
    "extend_run",
    "fit",
    "fork_run",
    "infer",
    "list_runs",
    "mirror_run",
    "open_run",
    "prune_run",
    "read_columns",
    "read_image",
    "run_status",
    "stop_run",
    "verify_run",
    "weighted_order",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'train_core' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
