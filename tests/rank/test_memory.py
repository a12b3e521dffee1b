"""What a process remembers of a run between two attempts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from tests.rank.alone import create
from tests.rank.tiny import Tiny, TinySettings
from train_core import TrainConfig
from train_core.datasets.protocols import Dataset, Split, Stream
from train_core.rank import training
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


def test_each_attempt_has_a_workload_and_data_of_its_own(tmp_path: Path) -> None:
    folder, config = run_of(tmp_path)
    memory = Memory()
    memory.turn_to(folder.url)
    prepared = memory.prepare(folder, config)
    first = memory.load(folder, config)
    assert first is prepared
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
