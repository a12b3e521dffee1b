"""What a process remembers of a run between two attempts."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from tests.rank.alone import create
from tests.rank.tiny import Tiny, TinySettings
from train_core import ArrayDataset, TrainConfig
from train_core.datasets.protocols import Columns, Dataset, Split, Stream
from train_core.rank import training
from train_core.rank.loaded_workload import LoadedWorkload
from train_core.rank.memory import Memory
from train_core.storage.run_folder import RunFolder

LOADED: list[str] = []
"""The splits that were loaded, in their order."""


class Learns(Tiny):
    """Knows of its data what `dataset` found, and counts what it is asked for."""

    num_samples = 0

    def __init__(self, settings: TinySettings) -> None:
        super().__init__(settings)
        self.found: dict[str, int] | None = None

    def dataset(self, split: Split) -> Dataset | Stream:
        LOADED.append(split)
        found = super().dataset(split)
        self.num_samples = len(found)
        self.found = (self.found or {}) | {split: len(found)}
        return found


def run_of(tmp_path: Path, **more: Any) -> tuple[RunFolder, TrainConfig]:
    folder = RunFolder(str(tmp_path), "run")
    config = TrainConfig(workload=f"{__name__}:Learns", batch_size=32, **more)
    create(folder, config)
    LOADED.clear()
    return folder, config


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """Samples of a dataset of arrays, one at a time, with something beside them."""

    def __init__(self, rows: Any, beside: Any = None) -> None:
        self.rows, self.beside = rows, beside

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        sample: dict[str, Any] = self.rows[index]
        return sample


class Keeper:
    kept: Any = None

    def keep(self, what: Any) -> None:
        type(self).kept = what


KEEPER = Keeper()


class Given(Tiny):
    """Gives its arrays as some author of a workload would."""

    gives: Callable[[Any, ArrayDataset], Any] = staticmethod(lambda _, rows: rows)

    def __init__(self, settings: TinySettings) -> None:
        super().__init__(settings)
        self.names = ("x", "label")
        self.counts: dict[str, list[int]] = {"train": []}

    def dataset(self, split: Split) -> Dataset | Stream:
        LOADED.append(split)
        return type(self).gives(self, super().dataset(split))


class Encoder:
    """Of somebody else: what calls leave in it cannot be seen."""


class Encoding(Given):
    def __init__(self, settings: TinySettings) -> None:
        super().__init__(settings)
        self.encoder = Encoder()


class Collating(Given):
    gives = staticmethod(lambda _, rows: Rows(rows))

    def collate(self, samples: list[dict[str, Any]]) -> Columns:
        return {name: np.stack([one[name] for one in samples]) for name in samples[0]}


def named(workload: Any, rows: Any) -> Any:
    workload.vocabulary = list(rows.columns)
    return rows


def counted(workload: Any, rows: Any) -> Any:
    workload.counts["train"].append(len(rows))
    return rows


def classes(workload: Any, rows: Any) -> Any:
    workload.class_names = ("a", "b", "c")
    return rows


APART: dict[str, Callable[[Any, Any], Any]] = {
    "arrays": lambda _, rows: rows,
    "its settings": lambda workload, rows: Rows(rows, workload.settings),
    "what nobody can change": lambda workload, rows: Rows(rows, workload.names),
    "a function of the module": lambda _, rows: Rows(rows, named),
    "its class": lambda workload, rows: Rows(rows, type(workload)),
}


def of_a_class(workload: Any, rows: Any) -> Any:
    class Own(Rows):
        def __len__(self) -> int:
            return len(self.rows) - workload.num_steps

    return Own(rows)


TOGETHER: dict[str, Callable[[Any, Any], Any]] = {
    "the workload": lambda workload, rows: Rows(rows, workload),
    "a method": lambda workload, rows: Rows(rows, [workload.prepare]),
    "a closure": lambda workload, rows: Rows(rows, SimpleNamespace(call=lambda: workload)),
    "a default": lambda workload, rows: Rows(rows, lambda it=workload: it),
    "a generator": lambda workload, rows: Rows(rows, (it for it in [workload])),
    "a container": lambda workload, rows: Rows(rows, workload.counts["train"]),
    "an array of objects": lambda workload, rows: Rows(rows, np.array([workload.prepare, None])),
    "a weak reference": lambda workload, rows: Rows(rows, weakref.ref(workload)),
    "a class": of_a_class,
    "an attribute of a class": lambda workload, rows: KEEPER.keep(workload) or rows,
    "an attribute that is set": named,
    "an attribute of the class that is set": classes,
    "a container that is filled": counted,
}


def loaded_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, gives: Any
) -> tuple[LoadedWorkload, LoadedWorkload]:
    folder = RunFolder(str(tmp_path), "run")
    config = TrainConfig(workload=f"{__name__}:{kind}", batch_size=32)
    create(folder, config)
    if gives is not None:
        monkeypatch.setattr(Given, "gives", staticmethod(gives))
    LOADED.clear()
    memory = Memory()
    memory.turn_to(folder.url)
    first = memory.load(folder, config)
    memory.data = first.data()
    second = memory.load(folder, config)
    assert second.workload is not first.workload
    return first, second


@pytest.mark.parametrize("how", APART)
def test_data_that_do_not_depend_on_the_workload_are_used_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    first, second = loaded_twice(tmp_path, monkeypatch, "Given", APART[how])
    assert LOADED == ["train", "validation"]
    assert second.train_set is first.train_set
    assert second.validation_set is first.validation_set
    # As often as an attempt breaks.
    assert second.data() == first.data()


@pytest.mark.parametrize("how", TOGETHER)
def test_data_that_may_depend_on_the_workload_are_loaded_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    first, second = loaded_twice(tmp_path, monkeypatch, "Given", TOGETHER[how])
    assert LOADED == ["train", "validation"] * 2
    assert second.train_set is not first.train_set


def test_a_workload_with_an_object_that_loading_may_have_changed_loads_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded_twice(tmp_path, monkeypatch, "Encoding", None)
    assert LOADED == ["train", "validation"] * 2


def test_samples_are_collated_by_the_new_workload(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = loaded_twice(tmp_path, monkeypatch, "Collating", None)
    assert LOADED == ["train", "validation"]
    for one in (first, second):
        for data in (one.train_set, one.validation_set):
            assert data.collate.__self__ is one.workload  # type: ignore[union-attr]


def test_what_a_spare_has_loaded_is_for_its_first_attempt(tmp_path: Path) -> None:
    folder, config = run_of(tmp_path)
    memory = Memory()
    memory.turn_to(folder.url)
    prepared = memory.prepare(folder, config)
    first = memory.load(folder, config)
    assert first is prepared
    # `dataset` has told this workload what it found.
    memory.data = first.data()
    second = memory.load(folder, config)
    assert LOADED == ["train", "validation"] * 2
    assert second.train_set is not first.train_set
    assert second.workload is not first.workload


def test_another_run_is_another_memory(tmp_path: Path) -> None:
    folder, config = run_of(tmp_path)
    memory = Memory()
    memory.turn_to(folder.url)
    memory.prepare(folder, config)
    memory.turn_to(f"{folder.url}-other")
    assert memory.loaded is None


def test_a_spare_has_loaded_the_data_before_it_is_a_rank(tmp_path: Path) -> None:
    folder, config = run_of(tmp_path, threads_per_worker=2)
    threads = torch.get_num_threads()
    try:
        training.prepare(folder.url, config)
        assert torch.get_num_threads() == 2
        assert LOADED == ["train", "validation"]
        training._MEMORY.load(folder, config)
        assert LOADED == ["train", "validation"]
    finally:
        training._MEMORY.turn_to("")
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(False)
