"""The stream of micro-batches that a rank computes: each comes with its own batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.rank.tiny import StreamingTiny, Tiny, TinySettings
from train_core.config import TrainConfig
from train_core.rank.data.batches import TrainBatches
from train_core.rank.data.train_loader import TrainLoader
from train_core.rank.distributed.group import Group
from train_core.workload import load_split


def loader(workload: type[Tiny], tmp_path: Path, **config: Any) -> TrainLoader:
    # The third step has a single sample for three shards.
    given = {"batch_size": 8, "num_shards": 3, "accumulation_steps": 2, "epochs": 2} | config
    asked = TrainConfig(workload=f"tests.rank.tiny:{workload.__name__}", **given)
    one = workload(TinySettings(num_train=17, scratch=str(tmp_path)))
    group = Group.current()
    return TrainLoader(one, load_split(one, "train"), asked, group, has_equal_passes=False)


def steps(found: TrainLoader, count: int) -> list[list[tuple[int, int, int, int, bool]]]:
    return [
        [
            (micro.step, micro.shard, micro.micro_step, len(batch["inputs"]), is_last)
            for shard in found.shards
            for micro, batch, is_last in found.batches_of(shard)
        ]
        for _ in range(count)
    ]


@pytest.mark.parametrize("workload", [Tiny, StreamingTiny])
def test_each_shard_has_its_micro_batches_and_the_last_is_marked(
    workload: type[Tiny], tmp_path: Path
) -> None:
    found = loader(workload, tmp_path)
    found.start(0, 0)
    first, _, last = steps(found, 3)
    assert first == [
        *((0, 0, 0, 2, False), (0, 0, 1, 2, True)),
        *((0, 1, 0, 1, False), (0, 1, 1, 1, True)),
        *((0, 2, 0, 1, False), (0, 2, 1, 1, True)),
    ]
    assert last == [(2, 0, 0, 1, True)]


@pytest.mark.parametrize("data_workers", [0, 2])
def test_it_goes_on_where_it_is_started(data_workers: int, tmp_path: Path) -> None:
    through, later = (loader(Tiny, tmp_path, data_workers=data_workers) for _ in range(2))
    try:
        through.start(0, 0)
        later.start(1, 4)
        steps(through, 4)
        (micro, batch, _), *_ = through.batches_of(0)
        (same, also, _), *_ = later.batches_of(0)
        assert micro == same
        assert torch.equal(batch["inputs"], also["inputs"])
    finally:
        through.close()
        later.close()


def test_shards_are_asked_for_in_their_order(tmp_path: Path) -> None:
    found = loader(Tiny, tmp_path)
    found.start(0, 0)
    with pytest.raises(AssertionError, match="shard 1 is asked for"):
        next(found.batches_of(1))


@pytest.mark.promise("sample-randomness")
@pytest.mark.parametrize(
    "draws",
    [{"augmentation": 0.1}, {"augmentation": 0, "sample_by_sample": True}],
    ids=["prepare", "dataset"],
)
def test_a_sample_is_another_one_in_each_epoch_and_the_same_in_any_batch(
    draws: dict[str, Any], tmp_path: Path
) -> None:
    one = Tiny(TinySettings(num_train=17, scratch=str(tmp_path), **draws))
    batches = TrainBatches(one, load_split(one, "train"), seed=0)
    first, second = (batches.read(epoch, np.arange(8))["inputs"] for epoch in (0, 1))
    assert not (first == second).all(dim=1).any()
    assert torch.equal(batches.read(1, np.arange(4, 8))["inputs"], second[4:])
