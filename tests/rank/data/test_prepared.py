"""A batch lies in memory as torch lays it out, wherever the arrays of `prepare` lie."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import nn

from tests.rank import alone
from tests.rank.digests import digest_of_training
from tests.rank.tiny import Tiny, TinySettings
from train_core import Batch, Columns
from train_core.errors import WorkloadError
from train_core.policy.samples.randomness import SampleRandom
from train_core.rank.data.prepared import prepare_batch
from train_core.storage.run_folder import RunFolder

CACHE_LINE = 64


def placed(array: npt.NDArray[Any], offset: int) -> npt.NDArray[Any]:
    """A copy that begins so many bytes after the beginning of a cache line."""
    memory = np.empty(array.nbytes + 2 * CACHE_LINE, np.uint8)
    begin = -memory.ctypes.data % CACHE_LINE + offset
    copy = memory[begin : begin + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[...] = array
    return copy


class PlacedSettings(TinySettings):
    offset: int = 0


class Placed(Tiny):
    """Inputs and a weight begin at some place of a cache line, as numpy's arrays do."""

    Settings = PlacedSettings
    settings: PlacedSettings

    def model(self) -> nn.Module:
        first = nn.Linear(16, 8)
        weight = placed(first.weight.detach().numpy(), self.settings.offset)
        first.weight = nn.Parameter(torch.from_numpy(weight))
        return nn.Sequential(first, nn.ReLU(), nn.Linear(8, 3))

    def after_step(self, model: nn.Module, step: int) -> None:
        pass

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        batch = super().prepare(columns, random)
        inputs = placed(np.tile(batch["inputs"].numpy(), 2), self.settings.offset)
        return {**batch, "inputs": torch.from_numpy(inputs)}


@pytest.mark.promise("exact-training")
def test_a_training_has_the_same_bits_wherever_its_arrays_begin(tmp_path: Path) -> None:
    ends = set()
    for offset in (0, 4, 16, 32, 48):
        folder = RunFolder(str(tmp_path), f"offset-{offset}")
        settings = {"offset": offset}
        workload = f"{__name__}:Placed"
        alone.run(folder, workload=workload, settings=settings, num_shards=2, monitor_order="max")
        ends.add(digest_of_training(folder))
    assert len(ends) == 1


@pytest.mark.parametrize(
    "tensor",
    [
        torch.from_numpy(placed(np.arange(24.0).reshape(4, 6), 16)),
        torch.arange(48.0).reshape(4, 12)[:, ::2],
        torch.arange(6.0).expand(4, 6),
        torch.arange(48.0).reshape(4, 12)[:, 1:],
        torch.from_numpy(placed(np.arange(96.0).reshape(4, 2, 3, 4), 8)).to(
            memory_format=torch.channels_last
        ),
        torch.empty(0, 6),
    ],
)
def test_a_tensor_keeps_its_values_and_begins_at_a_cache_line(tensor: torch.Tensor) -> None:
    class Gives(Tiny):
        def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
            return {"inputs": tensor}

    found = prepare_batch(Gives(TinySettings()), {}, None)["inputs"]
    assert torch.equal(found, tensor)
    assert found.data_ptr() % CACHE_LINE == 0
    dense = torch.empty_like(tensor, memory_format=torch.preserve_format)
    assert found.stride() == dense.stride()


def test_what_is_no_tensor_is_named() -> None:
    class Gives(Tiny):
        def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
            return {"inputs": np.zeros(3)}  # type: ignore[dict-item]  # a user's mistake

    with pytest.raises(WorkloadError, match=r"prepare\(\) of Gives gives a ndarray as 'inputs'"):
        prepare_batch(Gives(TinySettings()), {}, None)
