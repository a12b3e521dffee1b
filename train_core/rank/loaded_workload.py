"""A workload that is loaded, with the splits that a training reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from train_core.config import TrainConfig
from train_core.datasets.protocols import Dataset, Stream
from train_core.rank.data.recorded_workload import load_recorded, with_login
from train_core.rank.metrics.evaluation_loop import check_split
from train_core.storage.records.run_record import Origin
from train_core.storage.run_folder import RunFolder
from train_core.workload import Workload, indexed, load_split


@dataclass(frozen=True)
class LoadedWorkload:
    """What is trained, and on which data."""

    workload: Workload[Any]
    train_set: Dataset | Stream
    validation_set: Dataset

    @classmethod
    def of_run(cls, folder: RunFolder, config: TrainConfig) -> Self:
        """The run's workload and data. Raises WorkloadError, and DataError as `load_recorded`."""
        workload = load_recorded(folder, config)
        return cls(workload, load_split(workload, "train"), indexed(workload, "validation"))

    def check(self) -> None:
        """Raise DataError for a split without samples."""
        check_split(self.validation_set, "validation")
        check_split(self.train_set, "train")


def first_weights(folder: RunFolder, config: TrainConfig) -> Origin | None:
    """Whose weights the run begins with; None: the workload's own."""
    if not config.init_from:
        return None
    recorded = folder.record().origin
    return recorded and with_login(recorded, config, folder.storage)
