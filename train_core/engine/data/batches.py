"""Fetching: raw columns from a dataset, prepared as batches, in the loop or ahead of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.data import Dataset as TorchDataset

from train_core.config import TrainConfig
from train_core.datasets.faulty_files import reading, row_at_fault
from train_core.datasets.protocols import (
    Columns,
    Dataset,
    ShardStream,
    Stream,
    fetch,
    gives_columns,
)
from train_core.engine.distributed.group import Group
from train_core.errors import EvertrainError
from train_core.policy.samples.randomness import AUGMENT, SampleRandom, derive_seed
from train_core.policy.samples.sample_order import sample_order
from train_core.policy.samples.steps import MicroBatch, Pass
from train_core.workload import Batch, Workload, prepare_batch, seed_generators

T = TypeVar("T")

PlannedBatch = tuple[Pass, Batch]
"""A pass with its batch, which is empty if the pass computes nothing."""


class TrainBatches(TorchDataset[PlannedBatch]):
    """The batch of each pass of the plan, with that pass. It is the same in every process."""

    def __init__(self, workload: Workload[Any], dataset: Dataset, seed: int) -> None:
        self._workload = workload
        self._dataset = dataset
        self._seed = seed
        self._epoch = -1
        self._order = np.empty(0, np.int64)
        self._gives_columns: bool | None = None
        """Whether the dataset is read a batch at a time; found out in the process that reads it."""

    def __getitem__(self, planned: Pass) -> PlannedBatch:
        micro = planned.micro_batch
        return planned, {} if micro is None else self._batch(micro)

    def _batch(self, micro: MicroBatch) -> Batch:
        if micro.epoch != self._epoch:
            self._order = sample_order(self._seed, micro.epoch, len(self._dataset))
            self._epoch = micro.epoch
        return self.read(micro.epoch, self._order[micro.positions.start : micro.positions.stop])

    def read(self, epoch: int, indices: npt.NDArray[np.int64]) -> Batch:
        """The batch of these samples, as the epoch has them."""
        columns = self._fetch(indices, epoch)
        random = SampleRandom(self._seed, epoch, indices)
        return prepare(self._workload, columns, random, indices)

    def _fetch(self, indices: npt.NDArray[np.int64], epoch: int) -> Columns:
        if self._gives_columns is None:
            self._gives_columns = gives_columns(self._dataset)
        if self._gives_columns:
            return fetch(self._dataset, indices)
        # A dataset read sample by sample may transform with any generator: each sample gets
        # its own randomness, whichever process reads it.
        seeded = _SeededPerSample(self._dataset, self._seed, epoch)
        return fetch(seeded, indices)


class StreamBatches:
    """The batches of a stream's shards in this process, and each shard's position."""

    def __init__(self, workload: Workload[Any], stream: Stream, config: TrainConfig) -> None:
        self._workload = workload
        self._stream = stream
        self._config = config
        self._parts: dict[int, ShardStream] = {}
        self._restored: dict[str, Any] = {}

    def batches(self, epoch: int, shards: range, passes: Iterable[Pass]) -> Iterator[PlannedBatch]:
        """An epoch's passes with their batches; after `restore` from the restored positions."""
        num_shards = self._config.shards
        self._parts = {shard: self._stream.shard(shard, num_shards, epoch) for shard in shards}
        for shard, part in self._parts.items():
            if self._restored:
                part.load_state_dict(self._restored[str(shard)])
        self._restored = {}
        return (
            (planned, {} if planned.micro_batch is None else self._batch(planned.micro_batch))
            for planned in passes
        )

    def captured_everywhere(self, group: Group) -> dict[str, Any]:
        """The positions of all shards' streams, gathered on every rank."""
        here = {str(shard): part.state_dict() for shard, part in self._parts.items()}
        captured: dict[str, Any] = {}
        for of_rank in group.gather(here):
            captured |= of_rank
        return captured

    def restore(self, state: dict[str, Any]) -> None:
        """Set the positions at which the next `batches` begins."""
        self._restored = state

    def _batch(self, micro: MicroBatch) -> Batch:
        with reading(partial("shard {} of the stream".format, micro.shard)):
            columns = self._parts[micro.shard].read(len(micro.positions))
        positions = np.arange(micro.positions.start, micro.positions.stop)
        random = SampleRandom(self._config.seed, micro.epoch, positions)
        return prepare(self._workload, columns, random, positions)


class _SeededPerSample:
    def __init__(self, dataset: Dataset, seed: int, epoch: int) -> None:
        self._dataset, self._seed, self._epoch = dataset, seed, epoch

    def __len__(self) -> int:
        return len(self._dataset)

    def __getitem__(self, index: int, /) -> Any:
        seed_generators(derive_seed(self._seed, AUGMENT, self._epoch, index))
        return self._dataset[index]


def prepare(
    workload: Workload[Any],
    columns: Columns,
    random: SampleRandom | None,
    samples: npt.NDArray[np.int64],
) -> Batch:
    """The raw columns of these samples as a batch; an error of the workload's names the sample."""
    try:
        return prepare_batch(workload, columns, random, lambda row: f"sample {samples[row]}")
    except EvertrainError:
        raise
    except Exception as error:
        # Without randomness, which is of as many samples as the batch has.
        row = row_at_fault(lambda one: workload.prepare(one, None), columns)
        if row is not None:
            error.add_note(f"in sample {samples[row]}")
        raise


def model_to_device(model: nn.Module, device: torch.device, *, channels_last: bool) -> nn.Module:
    """The model on the device, with its 4-d parameters in the memory format asked for."""
    model = model.to(device)
    if not channels_last:
        return model
    return model.to(memory_format=torch.channels_last)  # type: ignore[no-any-return, call-overload]  # torch's stub lacks it


def to_device(batch: Batch, device: torch.device, *, channels_last: bool) -> Batch:
    """The batch on the device, with 4-d tensors in the memory format that is asked for."""
    return {
        name: tensor.to(
            device,
            non_blocking=True,
            memory_format=torch.channels_last
            if channels_last and tensor.dim() == 4
            else torch.preserve_format,
        )
        for name, tensor in batch.items()
    }
