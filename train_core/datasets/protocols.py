"""The kinds of raw data: a map-style dataset, or a stream that is only read forward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Literal, Protocol, get_args

import numpy as np
import numpy.typing as npt
from typing_extensions import TypeIs

from train_core.datasets.faulty_files import reading
from train_core.errors import WorkloadError

Split = Literal["train", "validation", "test"]
_MOST_LISTED = 8
SPLITS: tuple[Split, ...] = get_args(Split)

Columns = Mapping[str, npt.NDArray[Any]]
"""Raw data, a name per column; every array's first dimension is the sample."""


class Dataset(Protocol):
    """Map-style raw data: any `torch.utils.data.Dataset` with a length will do.

    A sample is a mapping of column names to values, or what the workload's `collate` takes. A
    dataset that also has torch's `__getitems__(indices)` and returns `Columns` there is read a
    batch at a time, which is far faster. A `digest()` that names the content goes into run.json.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class ShardStream(Protocol):
    """One shard's part of a stream in one epoch, read forward; its position can be restored."""

    def read(self, count: int) -> Columns:
        """The next `count` samples."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """The position: tensors, numbers, strings, lists and dicts of them."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict` was taken."""
        ...


class Stream(Protocol):
    """Iterable raw data to train on: generated, or read from a source without random access."""

    def __len__(self) -> int:
        """Samples of an epoch."""
        ...

    def shard(self, shard: int, num_shards: int, epoch: int) -> ShardStream:
        """The samples of one of `num_shards` shards, independent of the other shards."""
        ...


def is_stream(dataset: Dataset | Stream) -> TypeIs[Stream]:
    """Whether the data are a stream."""
    return hasattr(dataset, "shard")


Collate = Callable[[Sequence[Any]], Columns]


class WrappedDataset:
    """A dataset that is read in a way of the engine's; `whole` may be one, too."""

    def __init__(self, whole: Dataset | Stream, collate: Collate | None = None) -> None:
        self.whole = whole
        inner = whole.collate if isinstance(whole, WrappedDataset) else None
        self.collate: Collate | None = collate or inner
        """What makes columns of its samples; None: `columns_of_samples`."""

    def __len__(self) -> int:
        return len(self.whole)

    def __getitem__(self, index: int, /) -> Any:
        return self.whole[index]  # type: ignore[index]  # never asked of a stream


class CollatedDataset(WrappedDataset):
    """A dataset whose samples become columns by a workload's own `collate`."""

    def __getattr__(self, name: str) -> Any:
        # A copy asks for others before it has the dataset.
        if name == "whole" or (name.startswith("_") and name != "__getitems__"):
            raise AttributeError(name)
        return getattr(self.whole, name)


def users_own(dataset: Any) -> Any:
    """The dataset that the workload gave."""
    while isinstance(dataset, WrappedDataset):
        dataset = dataset.whole
    return dataset


def gives_columns(dataset: Dataset) -> bool:
    """Whether the dataset's `__getitems__` gives columns, and not a list of samples.

    torch's `Subset` and Hugging Face's datasets list samples, each of which may be transformed.
    """
    if not hasattr(dataset, "__getitems__"):
        return False
    return isinstance(dataset.__getitems__(np.arange(1)), Mapping)


def fetch(dataset: Dataset, indices: npt.NDArray[np.int64]) -> Columns:
    """The raw samples at `indices`, as columns. An error of the dataset's names the sample."""
    if hasattr(dataset, "__getitems__"):
        with reading(partial(_in_short, indices)):
            found = dataset.__getitems__(indices)
            if isinstance(found, Mapping):
                return found
            samples = list(found)
    else:
        samples = []
        for index in indices:
            with reading(partial("sample {}".format, index)):
                samples.append(dataset[int(index)])
    if isinstance(dataset, WrappedDataset) and dataset.collate is not None:
        return dataset.collate(samples)
    if not isinstance(samples[0], Mapping):
        raise WorkloadError(
            f"a sample of {type(users_own(dataset)).__name__} is a {type(samples[0]).__name__}: "
            "return a mapping of column names to values, or give the workload a collate() that "
            "makes columns of such samples"
        )
    return columns_of_samples(samples)


def columns_of_samples(samples: Sequence[Mapping[str, Any]]) -> dict[str, npt.NDArray[Any]]:
    """Each name's values: one array if all have the same shape, and else one of objects."""
    return {name: _column([sample[name] for sample in samples]) for name in samples[0]}


def _column(values: list[Any]) -> npt.NDArray[Any]:
    try:
        arrays = [np.asarray(value) for value in values]
    except ValueError:
        # A list of lists of different lengths.
        arrays = []
    if len({array.shape for array in arrays}) == 1:
        return np.stack(arrays)
    column = np.empty(len(values), object)
    column[:] = values
    return column


def _in_short(indices: npt.NDArray[np.int64]) -> str:
    listed = [str(index) for index in indices[:_MOST_LISTED]]
    more = len(indices) - len(listed)
    return f"one of the samples {', '.join(listed)}{f' and {more} more' if more > 0 else ''}"
