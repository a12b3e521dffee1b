"""The rehearsal of a workload that is named, without a run."""

from __future__ import annotations

from functools import partial
from typing import Any

from train_core.config import TrainConfig
from train_core.engine.rehearsal.rehearse import rehearse
from train_core.loading import load_workload
from train_core.results import Rehearsal
from train_core.workload import indexed, load_split


def check_workload(config: dict[str, Any]) -> Rehearsal:
    """Rehearse the workload of a configuration, on its own data.

    Raises ConfigError for what cannot be loaded, and for what the engine itself refuses.
    """
    asked = TrainConfig.model_validate(config)
    new_workload = partial(load_workload, asked.workload, asked.settings)
    workload = new_workload()
    return rehearse(
        new_workload, asked, load_split(workload, "train"), indexed(workload, "validation")
    )
