"""The user's part: a Workload says what to train, and nothing of how.

It knows no ranks, devices, checkpoints, Ray or MLflow. One class, named as
`package.module:Name`, with typed settings of its own.
"""

from __future__ import annotations

# First, before any module imports torchmetrics by itself.
from train_core import quick_imports  # noqa: F401 (what it does is the point)

# isort: split
import hashlib
import importlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, Literal, Protocol, TypeVar, get_args

import numpy as np
import numpy.typing as npt
import torch
import torchmetrics
from pydantic import BaseModel, ConfigDict, ValidationError
from torch import Tensor, nn
from typing_extensions import TypeIs

from train_core.datasets.files import DataFile, PinnedFiles
from train_core.errors import DataError, WorkloadError
from train_core.policy.logins import hide_logins
from train_core.policy.randomness import SampleRandom
from train_core.storage.records.data_files import FileList

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = get_args(Split)

Columns = Mapping[str, npt.NDArray[Any]]
"""Raw data, a name per column; every array's first dimension is the sample."""

Batch = dict[str, Tensor]
"""What the model is fed, a name per tensor; every tensor's first dimension is the sample."""


class Dataset(Protocol):
    """Map-style raw data: any `torch.utils.data.Dataset` with a length will do.

    A sample is a mapping of column names to values. A dataset that also has torch's
    `__getitems__(indices)` and returns `Columns` there is read a batch at a time, which is
    far faster. A `digest()` that names the content goes into run.json.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


class ShardStream(Protocol):
    """One shard's part of a stream in one epoch: read forward, and put back where it stood."""

    def read(self, count: int) -> Columns:
        """The next `count` samples."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Where it stands: tensors, numbers, strings, lists and dicts of them."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from where `state_dict` was taken."""
        ...


class Stream(Protocol):
    """Iterable raw data to train on: generated, or read from where no index leads."""

    def __len__(self) -> int:
        """Samples of an epoch."""
        ...

    def shard(self, shard: int, num_shards: int, epoch: int) -> ShardStream:
        """The samples of one of `num_shards` shards, whoever reads the others."""
        ...


class Settings(BaseModel):
    """Base of a workload's settings: frozen, and unknown names are an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


SettingsT = TypeVar("SettingsT", bound=Settings)


class Workload(Generic[SettingsT]):
    """What to train: the model, its optimizer, its data, its loss and its metrics.

    Subclass it, set `Settings`, and write the seven methods that raise NotImplementedError.
    The same `prepare` turns raw columns into a batch in training, evaluation, inference and
    serving, so that no two of them can differ.
    """

    Settings: ClassVar[type[Settings]] = Settings
    target_columns: ClassVar[tuple[str, ...]] = ("label",)
    """Raw columns that exist in training only: what is to be predicted."""
    class_names: ClassVar[tuple[str, ...]] = ()
    """Names of the classes, for a classifier: its confusion matrix is drawn with them."""

    _files: PinnedFiles | None = None
    _recorded: RecordedData | None = None

    def __init__(self, settings: SettingsT) -> None:
        self.settings = settings

    def model(self) -> nn.Module:
        """A new model, with its initial weights. Randomness is seeded before the call."""
        raise NotImplementedError

    def initialize(self, model: nn.Module) -> None:
        """Called once, when a run begins from nothing: load published weights into the model.

        Not called when it begins with other weights (`init_from`).
        """

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """The optimizer of `model`, with its parameter groups."""
        raise NotImplementedError

    def sources(self) -> Mapping[str, str]:
        """The files that the data are in, under names of your choice: give them to `files`.

        Each is the URL of a file, of a folder (all files below it, but those whose name begins
        with . or _) or of a glob. They are listed once, when a run begins. Default: none, the
        workload lists its files itself.
        """
        return {}

    def files(self, name: str) -> tuple[DataFile, ...]:
        """The files of one of `sources`, sorted by name, as the run recorded them.

        Call it in `dataset`. What arrived later is left out. Raises DataError if a file is
        missing or is not what was recorded. Outside of a run: the files that are there.
        """
        if self._files is None:
            self._files = PinnedFiles.listed(self.sources())
        return self._files.files(name)

    def dataset(self, split: Split) -> Dataset | Stream:
        """The raw data of a split. Raises DataError for what is missing or malformed.

        A `Stream` may be given for the training split; the others are read in any order.
        """
        raise NotImplementedError

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        """Raw columns as a batch. `random` is given in training only: augment with it.

        Columns named in `target_columns` are absent in inference and serving.
        """
        raise NotImplementedError

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        """The mean loss over the batch's samples, a scalar tensor."""
        raise NotImplementedError

    def metrics(self) -> Mapping[str, torchmetrics.Metric]:
        """New metrics by name; the mean loss is measured beside them under the name `loss`."""
        raise NotImplementedError

    def predictions(self, outputs: Any) -> Mapping[str, Tensor]:
        """The model's outputs as columns: `prediction` and, for classifiers, `probabilities`."""
        raise NotImplementedError

    def schedule(
        self, optimizer: torch.optim.Optimizer, total_steps: int
    ) -> torch.optim.lr_scheduler.LRScheduler | None:
        """The learning-rate schedule, stepped after each of `total_steps` steps but the last.

        None: the rate is constant.
        """
        return None

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        """The model's outputs for a batch. Default: `model(batch["inputs"])`."""
        return model(batch["inputs"])

    def update_metric(self, metric: torchmetrics.Metric, outputs: Any, batch: Batch) -> None:
        """Add a batch to one metric. Default: `metric.update(outputs, batch["targets"])`."""
        metric.update(outputs, batch["targets"])

    def blocks(self, model: nn.Module) -> Iterable[nn.Module]:
        """The parts of the model that strategy `fsdp` gathers and frees one by one.

        None may lie in another, and each computes in its `forward`. Default: the children of the
        outermost `nn.Sequential` and `nn.ModuleList`; what is in none is gathered as a whole.
        """
        return _children_of_containers(model)

    def after_step(self, model: nn.Module, step: int) -> None:
        """Called after each optimizer step, e.g. to move an average of the weights."""

    def state_dict(self) -> dict[str, Any]:
        """State of the workload's own: tensors, numbers, strings, lists and dicts of them."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore what `state_dict` gave."""

    def example(self) -> dict[str, npt.NDArray[Any]]:
        """Two raw samples without targets, for the model's signature."""
        columns = fetch(indexed(self, "validation"), np.arange(2))
        return {name: array for name, array in columns.items() if name not in self.target_columns}


def _children_of_containers(module: nn.Module) -> Iterator[nn.Module]:
    is_container = isinstance(module, nn.Sequential | nn.ModuleList)
    for child in module.children():
        # A list or dict of modules has no forward pass of its own.
        if is_container and not isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield child
        else:
            yield from _children_of_containers(child)


class ArrayDataset:
    """Raw columns in memory (or memory-mapped), read a batch at a time."""

    def __init__(self, **columns: npt.NDArray[Any]) -> None:
        lengths = {name: len(array) for name, array in columns.items()}
        if len(set(lengths.values())) != 1:
            raise DataError(f"columns of one dataset have different lengths: {lengths}")
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int, /) -> dict[str, Any]:
        return {name: array[index] for name, array in self.columns.items()}

    def __getitems__(self, indices: Sequence[int] | npt.NDArray[np.int64]) -> Columns:
        return {name: array[indices] for name, array in self.columns.items()}

    def digest(self) -> str:
        """SHA-256 over names, types, shapes and values."""
        sha = hashlib.sha256()
        for name, array in sorted(self.columns.items()):
            sha.update(f"{name} {array.dtype.str} {array.shape}".encode())
            sha.update(np.ascontiguousarray(array).data)
        return sha.hexdigest()


def fetch(dataset: Dataset, indices: npt.NDArray[np.int64]) -> Columns:
    """The raw samples at `indices`, as columns."""
    if hasattr(dataset, "__getitems__"):
        found = dataset.__getitems__(indices)
        if isinstance(found, Mapping):
            return found
        samples = list(found)
    else:
        samples = [dataset[int(index)] for index in indices]
    if not isinstance(samples[0], Mapping):
        raise WorkloadError(
            f"a sample of {type(dataset).__name__} is a {type(samples[0]).__name__}: "
            "return a mapping of column names to values"
        )
    return {name: np.stack([np.asarray(s[name]) for s in samples]) for name in samples[0]}


def describe_data(dataset: Dataset | Stream) -> dict[str, Any]:
    """What run.json says of a split: its samples, and its digest if it has one."""
    digest = dataset.digest() if hasattr(dataset, "digest") else None
    return {"samples": len(dataset), "digest": digest}


@dataclass(frozen=True)
class RecordedData:
    """What a run recorded of its data: all that its workload may read."""

    run: str
    splits: Mapping[str, Mapping[str, Any]]
    """What `describe_data` gave of each split."""
    files: FileList | None
    """The files of the workload's sources; None if there are none, or an older run."""

    def check(self, split: Split, dataset: Dataset | Stream) -> None:
        """Raise DataError if the split is not what was recorded."""
        recorded = self.splits.get(split, {})
        found = describe_data(dataset)
        for name, there in found.items():
            was = recorded.get(name)
            if was is not None and was != there:
                raise DataError(
                    f"the {split} split is not what run {self.run!r} was begun with: {name} was "
                    f"{was}, is {there}. Bring the data back, or start a run under another name. "
                    "A workload whose folder grows names its files (sources), and so keeps to them"
                )


def load_split(workload: Workload[Any], split: Split) -> Dataset | Stream:
    """The raw data of a split. Raises DataError if they are not what the run recorded."""
    dataset = workload.dataset(split)
    if recorded := workload._recorded:  # noqa: SLF001 (no concern of the workload's author)
        recorded.check(split, dataset)
    return dataset


def pinned_files(workload: Workload[Any], earlier: FileList | None = None) -> FileList | None:
    """The files of all its sources, as they are recorded or as they are now; None: it names none.

    Digests of files that `earlier` has in the same version are taken from it. Raises DataError for
    a source without files.
    """
    if workload._files is None:  # noqa: SLF001 (no concern of the workload's author)
        workload._files = PinnedFiles.listed(workload.sources(), earlier)  # noqa: SLF001
    found = workload._files.recorded  # noqa: SLF001
    return found if found.sources else None


def indexed(workload: Workload[Any], split: Split) -> Dataset:
    """The raw data of a split that is read in any order. Raises WorkloadError for a stream."""
    dataset = load_split(workload, split)
    if is_stream(dataset):
        raise WorkloadError(
            f"the {split} split of {type(workload).__name__} is a stream: only the training split "
            "may be one, give a map-style dataset"
        )
    return dataset


def is_stream(dataset: Dataset | Stream) -> TypeIs[Stream]:
    """Whether the data is read forward only."""
    return hasattr(dataset, "shard")


def load_workload(
    name: str, settings: Mapping[str, Any], recorded: RecordedData | None = None
) -> Workload[Any]:
    """The workload that `package.module:Name` names, with its settings checked.

    With `recorded` it reads the data of a run, and no other. Raises WorkloadError if it cannot be
    imported, is no Workload, or refuses the settings.
    """
    workload = workload_class(name)(parse_settings(name, settings))
    if workload._files is not None:  # noqa: SLF001 (no concern of the workload's author)
        raise WorkloadError(
            f"{name} calls files() in __init__, where the run's record is not known yet: call it "
            "in dataset()"
        )
    if recorded is None:
        return workload
    workload._recorded = recorded  # noqa: SLF001
    if recorded.files is not None:
        workload._files = PinnedFiles(recorded.files).with_logins(workload.sources())  # noqa: SLF001
    return workload


def parse_settings(name: str, settings: Mapping[str, Any]) -> Settings:
    """The settings of the workload `name`, with their defaults. Raises WorkloadError."""
    try:
        return workload_class(name).Settings.model_validate(dict(settings))
    except ValidationError as error:
        details = "; ".join(
            f"{'.'.join(map(str, e['loc'])) or 'settings'}: {e['msg']}, "
            f"got {hide_logins(e['input'])!r}"
            for e in error.errors(include_url=False)
        )
        raise WorkloadError(
            f"settings of {name} are not valid: {details}. `evertrain workloads {name}` shows them."
        ) from error


def settings_schema(name: str) -> dict[str, Any]:
    """The JSON schema of a workload's settings. Raises WorkloadError if there is none."""
    return workload_class(name).Settings.model_json_schema()


def workload_class(name: str) -> type[Workload[Any]]:
    """The class that `package.module:Name` names. Raises WorkloadError."""
    module_name, _, class_name = name.partition(":")
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise WorkloadError(
            f"workload {name!r} cannot be imported: {type(error).__name__}: {error}. "
            "Name it as package.module:Name, and see that the module is on PYTHONPATH or in the "
            "current directory."
        ) from error
    kind = getattr(module, class_name, None)
    if not (isinstance(kind, type) and issubclass(kind, Workload)):
        there = sorted(
            key
            for key, value in vars(module).items()
            if isinstance(value, type) and issubclass(value, Workload) and value is not Workload
        )
        raise WorkloadError(
            f"workload {name!r}: {module_name} has no Workload named {class_name!r}"
            + (f", it has {', '.join(there)}" if there else "")
        )
    return kind
