"""Fetching: raw columns from a dataset, prepared as batches, in the loop or ahead of it."""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import multiprocessing
import os
import signal
import sys
import time
import traceback as tracebacks
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import nn
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

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
from train_core.errors import DataError, EvertrainError, UserCodeError, words_of
from train_core.policy.samples.randomness import AUGMENT, SampleRandom, derive_seed
from train_core.policy.samples.sample_order import sample_order
from train_core.policy.samples.steps import MicroBatch, Pass
from train_core.transient_errors import passes_by_itself
from train_core.workload import Batch, Workload, seed_generators

T = TypeVar("T")

PlannedBatch = tuple[Pass, Batch]
"""A pass with its batch, which is empty if the pass computes nothing."""

TELL_AFTER_S = 30.0
"""How long a batch is waited for until the log says so; then after twice as long, and so on."""
_POLL_S = 5.0
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 (where the system has it)
_STDERR = 2
_log = logging.getLogger("train_core.data")

_PR_SET_PDEATHSIG = 1
"""An option of Linux's prctl: the signal that a process gets when its parent ends."""


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
        indices = self._order[micro.positions.start : micro.positions.stop]
        columns = self._fetch(indices, micro.epoch)
        random = SampleRandom(self._seed, micro.epoch, indices)
        return prepare(self._workload, columns, random, indices)

    def _fetch(self, indices: np.ndarray[Any, np.dtype[np.int64]], epoch: int) -> Columns:
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
        with reading(f"shard {micro.shard} of the stream"):
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
        return workload.prepare(columns, random)
    except EvertrainError:
        raise
    except Exception as error:
        # Without randomness, which is of as many samples as the batch has.
        row = row_at_fault(lambda one: workload.prepare(one, None), columns)
        if row is not None:
            error.add_note(f"in sample {samples[row]}")
        raise


class _Described(TorchDataset[T | EvertrainError]):
    """Items, or the error in the place of one: torch keeps no attribute of an error that it moves.

    It makes a new one of the same class, with a traceback of many lines as its message.
    """

    def __init__(self, batches: TorchDataset[T]) -> None:
        self._batches = batches

    def __getitem__(self, key: Any) -> T | EvertrainError:
        try:
            return self._batches[key]
        except EvertrainError as error:
            return error
        except Exception as error:
            if passes_by_itself(error):
                # Another attempt may read it: torch hands on this class, if not any client's.
                raise ConnectionError(words_of(error)) from error
            where, trace = f"data worker {os.getpid()}", tracebacks.format_exc()
            return UserCodeError.raised_by("train", where, error, trace)


def load_ahead(
    batches: TorchDataset[T], keys: Iterable[Any], *, num_processes: int, device: torch.device
) -> Iterator[T | EvertrainError]:
    """The items of `keys` in order, fetched by `num_processes` processes or in the loop.

    An item that a process could not fetch is the error, for the caller to raise.
    """
    loader: DataLoader[T | EvertrainError] = _Loader(
        _Described(batches) if num_processes else batches,
        batch_size=None,
        sampler=keys,
        num_workers=num_processes,
        pin_memory=device.type == "cuda",
        collate_fn=_in_shared_memory,
        worker_init_fn=_set_up_process,
    )
    return iter(loader)


def end_processes(batches: Iterator[Any]) -> None:
    """End the processes that `load_ahead` started, also while a traceback still refers to them."""
    if isinstance(batches, _MultiProcessingDataLoaderIter):
        batches._shutdown_workers()  # noqa: SLF001 (torch has no public way)


class _Loader(DataLoader[T]):
    """torch's, whose processes tell why they give nothing."""

    def _get_iterator(self) -> Any:
        return _LoaderIterator(self) if self.num_workers else super()._get_iterator()


class _LoaderIterator(_MultiProcessingDataLoaderIter):
    """Tells of a process that is waited for very long."""

    _next_told_s = TELL_AFTER_S
    _waits_since = 0.0

    def __next__(self) -> Any:
        self._waits_since, self._next_told_s = time.monotonic(), TELL_AFTER_S
        return super().__next__()

    def _try_get_data(self, timeout: float = _POLL_S) -> tuple[bool, Any]:
        found: tuple[bool, Any] = super()._try_get_data(timeout)  # type: ignore[no-untyped-call]
        waits_s = time.monotonic() - self._waits_since
        if not found[0] and waits_s >= self._next_told_s:
            self._next_told_s *= 2
            number = self._task_info[self._rcvd_idx][0]
            _log.warning(
                "the training waits for data process %d for %.0f s; what it does there (most "
                "recent call first) follows in this log",
                *(number, waits_s),
            )
            with suppress(OSError):
                os.kill(self._workers[number].pid, signal.SIGUSR1)
        return found


def _in_shared_memory(batch: Any) -> Any:
    """The batch, with its tensors where the rank can read them, in a process that fetches ahead.

    torch does so in a thread, as it sends the batch: an error there is lost, and the rank waits.
    """
    if get_worker_info() is None:
        return batch
    tensors = list(_tensors_of(batch))
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage() for one in tensors}
    size_bytes = sum(one.nbytes() for one in storages.values())
    try:
        room = os.statvfs(_SHARED_MEMORY)
        if room.f_bavail * room.f_frsize < size_bytes:
            return DataError(_no_room(size_bytes))
        for tensor in tensors:
            tensor.share_memory_()
    except OSError:  # there is no such folder
        return batch
    except RuntimeError as error:
        return DataError(f"{_no_room(size_bytes)} ({error})")
    return batch


def _tensors_of(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors_of(one)


def _no_room(size_bytes: int) -> str:
    room = os.statvfs(_SHARED_MEMORY)
    return (
        f"a batch of {size_bytes / 1e6:.1f} MB does not fit into {_SHARED_MEMORY}, which has "
        f"{room.f_bavail * room.f_frsize / 1e6:.1f} of {room.f_blocks * room.f_frsize / 1e6:.1f} "
        "MB free: give the container more shared memory (docker run --shm-size=2g; in Kubernetes "
        "an emptyDir with medium: Memory), or set data_workers to 0"
    )


def _set_up_process(number: int) -> None:
    # For a look at a process that hangs; Python's own handler of the signal would end it.
    faulthandler.register(signal.SIGUSR1, file=_STDERR, all_threads=False)
    _die_with_the_rank(number)


def _die_with_the_rank(_: int) -> None:
    """Let the kernel end this process when its rank ends.

    The forked process holds the sockets of its rank's process group. It polls its parent every
    five seconds only, and until then the other ranks would not notice that the rank has died.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The kernel sends no signal for a rank that died before this call.
        rank = multiprocessing.parent_process()
        if rank is not None and rank.pid != os.getppid():
            os._exit(1)


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
