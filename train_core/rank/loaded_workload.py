"""A workload that is loaded, with the splits that a training reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, Self

from train_core.config import TrainConfig
from train_core.datasets.protocols import CollatedDataset, Dataset, Stream, is_stream
from train_core.rank.data.recorded_workload import load_recorded, with_login
from train_core.rank.data.references import may_refer
from train_core.rank.metrics.evaluation_loop import check_split
from train_core.storage.records.run_record import Origin
from train_core.storage.run_folder import RunFolder
from train_core.workload import Workload, indexed, load_split, with_collate

_PLAIN = (str, bytes, int, float, type(None), PurePath, type)
"""What nobody can change."""
_CONTAINERS = (dict, list, set, tuple, frozenset)
_ENGINES = ("_files", "_recorded", "_fitted")
"""What a workload has that its author's code does not set: the run's record says it."""


@dataclass(frozen=True)
class Data:
    """What `dataset` gave for two splits, of as much use to another workload of the same run."""

    train_set: Dataset
    validation_set: Dataset


@dataclass(frozen=True)
class LoadedWorkload:
    """What is trained, and on which data."""

    workload: Workload[Any]
    train_set: Dataset | Stream
    validation_set: Dataset
    own: tuple[object, ...] | None = None
    """The workload, and all in it that may change; None: loading the data may have changed it."""

    @classmethod
    def of_run(cls, folder: RunFolder, config: TrainConfig, data: Data | None = None) -> Self:
        """The run's workload and its data, which are loaded where they are not given.

        Raises WorkloadError, and DataError as `load_recorded`.
        """
        workload = load_recorded(folder, config)
        if data:
            train_set = with_collate(workload, data.train_set)
            validation_set = with_collate(workload, data.validation_set)
            return cls(workload, train_set, validation_set, _own(workload))
        was = _attributes(workload)
        found = cls(workload, load_split(workload, "train"), indexed(workload, "validation"))
        is_unchanged = was is not None and was == _attributes(workload)
        return replace(found, own=_own(workload)) if is_unchanged else found

    def data(self) -> Data | None:
        """The data, for another workload of the same run; None: they may depend on this one."""
        if self.own is None or is_stream(self.train_set):
            return None
        data = Data(_without_collate(self.train_set), _without_collate(self.validation_set))
        return None if may_refer(data, self.own) else data

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


def _attributes(workload: Workload[Any]) -> dict[str, Any] | None:
    """A copy of what the author's code keeps in the workload; None: some may change unseen."""
    own = {name: value for name, value in vars(workload).items() if name not in _ENGINES}
    settings = own.pop("settings").model_dump()
    return {**deepcopy(own), "settings": settings} if _is_comparable(own) else None


def _is_comparable(value: object) -> bool:
    if isinstance(value, _CONTAINERS):
        return all(map(_is_comparable, _within(value)))
    return isinstance(value, _PLAIN)


def _own(workload: Workload[Any]) -> tuple[object, ...]:
    attributes = {name: value for name, value in vars(workload).items() if name != "settings"}
    return (workload, *_changeable(attributes.values()))


def _changeable(values: Iterable[object]) -> Iterator[object]:
    """The containers among the values, and within these, that may change."""
    for value in values:
        if isinstance(value, _CONTAINERS):
            if not isinstance(value, tuple | frozenset):
                yield value
            yield from _changeable(_within(value))


def _within(container: Any) -> Iterable[object]:
    return [*container, *container.values()] if isinstance(container, dict) else container


def _without_collate(dataset: Any) -> Any:
    return dataset.whole if isinstance(dataset, CollatedDataset) else dataset
