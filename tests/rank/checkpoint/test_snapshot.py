"""A snapshot lies in memory that is used again for the next one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from safetensors.torch import load

from train_core.rank.checkpoint.snapshot import Snapshot
from train_core.rank.distributed.group import Group
from train_core.storage.objects.backends.disk_files import BLOCK_BYTES


def state(*, value: float, rows: int = 3, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    return {
        "model": {"weight": torch.full((rows, 2), value, dtype=dtype)},
        "optimizer": {"state": {"weight": {"exp_avg": torch.full((rows, 2), -value)}}},
        "progress": {"step": int(value)},
    }


def addresses(snapshot: Snapshot) -> dict[str, int]:
    return {file.planned.name: file.buffer.data_ptr() for file in snapshot.files}


def weight(snapshot: Snapshot) -> torch.Tensor:
    (data,) = [bytes(f.data) for f in snapshot.files if f.planned.name == "model.safetensors"]
    return load(data)["weight"]


@pytest.mark.promise("cheap-checkpoints")
def test_the_next_snapshot_is_taken_into_the_same_memory() -> None:
    snapshot = Snapshot(1, Group.current())
    first = state(value=1)
    snapshot.take(first)
    where = addresses(snapshot)
    assert where.keys() == {"model.safetensors", "optimizer.safetensors"}
    # A disk fetches it from there.
    assert [address % BLOCK_BYTES for address in where.values()] == [0, 0]
    # It is a copy: the live tensors may change.
    first["model"]["weight"].fill_(9)
    assert torch.equal(weight(snapshot), torch.full((3, 2), 1.0))
    snapshot.take(state(value=2))
    assert addresses(snapshot) == where
    assert torch.equal(weight(snapshot), torch.full((3, 2), 2.0))
    assert snapshot.plain["progress"] == {"step": 2}


def test_where_the_layout_changes_it_has_memory_of_the_new_one() -> None:
    snapshot = Snapshot(1, Group.current())
    snapshot.take(state(value=1))
    # Held, so that nothing new can come to lie where it was.
    old = snapshot.files
    for changed in ({"rows": 4}, {"dtype": torch.float64}):
        snapshot.take(state(value=3, **changed))
        assert {f.buffer.data_ptr() for f in old}.isdisjoint(addresses(snapshot).values())
        expected = state(value=3, **changed)["model"]["weight"]
        assert torch.equal(weight(snapshot), expected)
        assert weight(snapshot).dtype == expected.dtype


def test_a_weight_that_is_frozen_from_now_on_goes_into_a_file_of_its_own() -> None:
    snapshot = Snapshot(1, Group.current())
    both = state(value=1)
    both["model"]["head"] = torch.ones(2)
    snapshot.take(both)
    assert [name for name in addresses(snapshot) if "model" in name] == ["model.safetensors"]
    snapshot.take(both, frozen={"model/head"})
    assert [name for name in addresses(snapshot) if "model" in name] == [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
    ]
