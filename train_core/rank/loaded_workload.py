"""A workload that is loaded, with the splits that a training reads."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Self

from train_core.config import TrainConfig
from train_core.datasets.protocols import CollatedDataset, Dataset, Stream, is_stream
from train_core.rank.data.recorded_workload import load_recorded, with_login
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
    is_apart: bool = False
    """Whether no data refer to the workload, and loading them has left it as it was."""

    @classmethod
    def of_run(cls, folder: RunFolder, config: TrainConfig, data: Data | None = None) -> Self:
        """The run's workload and its data, which are loaded where they are not given.

        Raises WorkloadError, and DataError as `load_recorded`.
        """
        workload = load_recorded(folder, config)
        if data:
            of_train, of_validation = data.train_set, data.validation_set
            wrapped = with_collate(workload, of_train), with_collate(workload, of_validation)
            return cls(workload, *wrapped, is_apart=True)
        was, references = _attributes(workload), _references(workload)
        train_set, validation_set = load_split(workload, "train"), indexed(workload, "validation")
        # Each that is wrapped has a method of the workload.
        references[0] += sum(map(_is_collated, (train_set, validation_set)))
        is_unchanged = was is not None and was == _attributes(workload)
        is_apart = is_unchanged and references == _references(workload)
        return cls(workload, train_set, validation_set, is_apart)

    def data(self) -> Data | None:
        """The data, for another workload of the same run; None: they may depend on this one."""
        if not self.is_apart or is_stream(self.train_set):
            return None
        return Data(_without_collate(self.train_set), _without_collate(self.validation_set))

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


def _references(workload: Workload[Any]) -> list[int]:
    """How many references there are to the workload, and to each of its containers.

    A reference of whatever kind is counted: a method, a variable of a closure, an array's element.
    """
    own = [value for name, value in vars(workload).items() if name not in _ENGINES]
    counted = [sys.getrefcount(one) for one in _changeable(own)]
    return [sys.getrefcount(workload), weakref.getweakrefcount(workload), *counted]


def _changeable(values: Iterable[object]) -> Iterator[object]:
    """The containers among the values, and within these, that may change."""
    for value in values:
        if isinstance(value, _CONTAINERS):
            if not isinstance(value, tuple | frozenset):
                yield value
            yield from _changeable(_within(value))


def _within(container: Any) -> Iterable[object]:
    return [*container, *container.values()] if isinstance(container, dict) else container


def _is_collated(dataset: object) -> bool:
    return isinstance(dataset, CollatedDataset)


def _without_collate(dataset: Any) -> Any:
    return dataset.whole if _is_collated(dataset) else dataset
