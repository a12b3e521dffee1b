"""Fetching: raw columns from a dataset, prepared as batches, in the loop or ahead of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from copy import deepcopy
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.nn.parameter import is_lazy
from torch.utils.data import Dataset as TorchDataset

from train_core.config import TrainConfig
from train_core.datasets.faulty_files import reading, row_at_fault
from train_core.datasets.protocols import (
    Columns,
    Dataset,
    ShardStream,
    Stream,
    WrappedDataset,
    fetch,
    gives_columns,
    users_own,
)
from train_core.errors import EvertrainError, WorkloadError
from train_core.policy.samples.randomness import AUGMENT, ORDER, SampleRandom, derive_seed
from train_core.policy.samples.sample_order import order_generator
from train_core.policy.samples.steps import MicroBatch, Pass
from train_core.rank.data.prepared import CACHE_LINE, prepare_batch
from train_core.rank.distributed.group import Group
from train_core.workload import Batch, Workload, seed_generators

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
            self._order = epoch_order(self._workload, self._dataset, self._seed, micro.epoch)
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
        self.known: dict[str, Any] = {}
        """The newest positions of all shards that this rank knows; empty: an epoch's beginning."""

    def batches(
        self, epoch: int, shards: range, skipped: Iterable[Pass], passes: Iterable[Pass]
    ) -> Iterator[PlannedBatch]:
        """An epoch's passes with their batches; after `restore` from the restored positions.

        The samples of `skipped` are read first, for nothing but to be beyond them.
        """
        num_shards = self._config.shards
        self._parts = {shard: self._stream.shard(shard, num_shards, epoch) for shard in shards}
        self.known = deepcopy(self._restored)
        for shard, part in self._parts.items():
            if self._restored:
                part.load_state_dict(self._restored[str(shard)])
        self._restored = {}
        for planned in skipped:
            if planned.micro_batch is not None:
                self._read(planned.micro_batch)
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
        self.known = deepcopy(captured)
        return captured

    def restore(self, state: dict[str, Any]) -> None:
        """Set the positions at which the next `batches` begins."""
        self._restored = state

    def _batch(self, micro: MicroBatch) -> Batch:
        columns = self._read(micro)
        positions = np.arange(micro.positions.start, micro.positions.stop)
        random = SampleRandom(self._config.seed, micro.epoch, positions)
        return prepare(self._workload, columns, random, positions)

    def _read(self, micro: MicroBatch) -> Columns:
        with reading(partial("shard {} of the stream".format, micro.shard)):
            return self._parts[micro.shard].read(len(micro.positions))


class _SeededPerSample(WrappedDataset):
    def __init__(self, dataset: Dataset, seed: int, epoch: int) -> None:
        super().__init__(dataset)
        self._seed, self._epoch = seed, epoch

    def __getitem__(self, index: int, /) -> Any:
        seed_generators(derive_seed(self._seed, AUGMENT, self._epoch, index))
        return super().__getitem__(index)


def epoch_order(
    workload: Workload[Any], dataset: Dataset, seed: int, epoch: int
) -> npt.NDArray[np.int64]:
    """The order in which an epoch visits the samples. Raises WorkloadError for no such order."""
    random = order_generator(seed, epoch)
    num_samples = len(dataset)
    if type(workload).order is Workload.order:
        return random.permutation(num_samples)
    whole = users_own(dataset)
    # For one that draws from another generator: the same in each process.
    seed_generators(derive_seed(seed, ORDER, epoch))
    found = np.asarray(workload.order(whole, random))
    is_order = found.shape == (len(whole),) and found.dtype.kind in "iu"
    if not is_order or (len(found) and not 0 <= found.min() <= found.max() < len(whole)):
        raise WorkloadError(
            f"order() of {type(workload).__name__} gives an array of shape {found.shape} and type "
            f"{found.dtype}: give an index from 0 to {len(whole) - 1} for each of the "
            f"{len(whole)} samples of an epoch"
        )
    # A part of the dataset, as a rehearsal trains on, has a part of its indices.
    return np.resize(found.astype(np.int64), num_samples) % num_samples


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
    """The model on the device, with its 4-d parameters in the memory format asked for.

    What was made of numpy's memory, which begins anywhere, gets memory of torch's: BLAS rounds by
    where a matrix begins.
    """
    copies: dict[int, torch.UntypedStorage] = {}
    for tensor in (*model.parameters(), *model.buffers()):
        if not is_lazy(tensor) and _is_of_numpys_memory(tensor):
            storage = tensor.untyped_storage()
            # Views of the same memory stay views of the same memory.
            copy = copies.setdefault(storage.data_ptr(), storage.clone())
            place = tensor.storage_offset(), tensor.size(), tensor.stride()
            tensor.data = torch.empty(0, dtype=tensor.dtype).set_(copy, *place)
    model = model.to(device)
    if not channels_last:
        return model
    return model.to(memory_format=torch.channels_last)  # type: ignore[no-any-return, call-overload]  # torch's stub lacks it


def _is_of_numpys_memory(tensor: torch.Tensor) -> bool:
    is_plain = tensor.layout == torch.strided and tensor.device.type == "cpu"
    return is_plain and tensor.untyped_storage().data_ptr() % CACHE_LINE != 0


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
