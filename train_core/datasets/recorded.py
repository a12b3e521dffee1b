"""The data that a run recorded when it began, and the check that they are still the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from train_core.datasets.protocols import Dataset, Split, Stream
from train_core.errors import DataError
from train_core.storage.records.data_files import FileList


@dataclass(frozen=True)
class RecordedData:
    """The data that a run recorded, which alone its workload may read."""

    run: str
    splits: Mapping[str, Mapping[str, Any]]
    """The result of `describe_data` for each split."""
    files: FileList | None
    """The files of the workload's sources; None if there are none, or an older run."""
    fitted: Any = None
    """What the workload fitted to the training split; None: nothing."""

    @property
    def forms(self) -> Mapping[str, str]:
        """What each raw column of the validation split is; empty of an older run."""
        found = self.splits.get("validation", {}).get("columns")
        return found if isinstance(found, Mapping) else {}

    def check(self, split: Split, dataset: Dataset | Stream) -> None:
        """Raise DataError if the split is not what was recorded."""
        recorded = self.splits.get(split, {})
        found = describe_data(dataset)
        for name, there in found.items():
            was = recorded.get(name)
            if was is not None and was != there:
                raise DataError(
                    f"the {split} split is not what run {self.run!r} was begun with: {name} was "
                    f"{was}, is {there}. Bring the data back, or start a run under another name. "
                    "If a folder grows, name its files in sources(), so that the run keeps to them"
                )


def describe_data(dataset: Dataset | Stream) -> dict[str, Any]:
    """The entry of a split in run.json: its samples, and its digest if it has one."""
    digest = dataset.digest() if hasattr(dataset, "digest") else None
    return {"samples": len(dataset), "digest": digest}
