"""The user's part: a Workload defines what to train, and nothing of how.

It knows no ranks, devices, checkpoints, Ray or MLflow. It is one class, named
`package.module:Name`, with typed settings of its own.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any, ClassVar, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from pydantic import BaseModel, ConfigDict
from torch import Tensor, nn

from train_core.datasets.faulty_files import reading
from train_core.datasets.files import DataFile
from train_core.datasets.protocols import (
    CollatedDataset,
    Columns,
    Dataset,
    Split,
    Stream,
    columns_of_samples,
    fetch,
    gives_columns,
    is_stream,
)
from train_core.datasets.recorded import RecordedData
from train_core.datasets.sources import PinnedFiles
from train_core.errors import WorkloadError
from train_core.policy.metric_names import VALIDATION_ACCURACY
from train_core.policy.samples.randomness import SampleRandom
from train_core.quick_metrics import Metric
from train_core.storage.records.data_files import FileList

_FIRST_SEED = 67280421310721
"""With which torch's generator begins in every process."""

Batch = dict[str, Tensor]
"""What the model is fed, a name per tensor; every tensor's first dimension is the sample."""


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

    monitor: ClassVar[str] = VALIDATION_ACCURACY
    """The metric that ranks checkpoints and stops early, where the configuration names none."""
    monitor_order: ClassVar[Literal["max", "min"]] = "max"
    """Whether more of it is better, or less."""

    _files: PinnedFiles | None = None
    _recorded: RecordedData | None = None
    _fitted: Any = None

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

        Call it in `dataset` or `fit`. What arrived later is left out. Raises DataError if a file
        is missing or is not what was recorded, and WorkloadError in a model that is served, which
        has none. Outside of a run: the files that are there.
        """
        if self._files is None:
            self._files = PinnedFiles.listed(self.sources())
        return self._files.files(name)

    def dataset(self, split: Split) -> Dataset | Stream:
        """The raw data of a split. Raises DataError for what is missing or malformed.

        A `Stream` may be given for the training split; the others are read in any order.
        """
        raise NotImplementedError

    def fit(self, train: Dataset | Stream) -> Any:
        """What a model needs to know of its training data: a vocabulary, means, categories.

        Called in one process, when a run begins, with the training split; not if it begins with
        the weights of a run of the same workload (`init_from`), whose result it takes. The result
        is part of the run and of its models: `self.fitted` in `prepare`, `model` and every other
        hook. Tensors, arrays, numbers, strings, lists and dicts of them. Default: None, nothing is
        fitted.
        """
        return None

    @property
    def fitted(self) -> Any:
        """What `fit` gave when the run began. Raises WorkloadError where that is not known."""
        if self._fitted is None:
            name = type(self).__name__
            if self._recorded is not None and fits(self):
                raise WorkloadError(
                    f"{name} reads self.fitted, and run {self._recorded.run!r} recorded nothing "
                    "that was fitted, as it began before there was a fit(): begin a new run"
                )
            raise WorkloadError(
                f"{name} reads self.fitted before fit() has had the training split: do so in "
                "prepare(), model() and the other hooks, and not in __init__() or dataset()"
                if fits(self)
                else f"{name} reads self.fitted and has no fit(): give it one that returns it"
            )
        return self._fitted

    def order(self, train: Dataset, random: np.random.Generator) -> npt.NDArray[np.int64]:
        """The indices of the samples of an epoch, in the order in which they are trained on.

        As many as the training split has; some may come again, and others not at all.
        `weighted_order` and `balanced_order` give such ones. `random` is derived from the seed and
        the epoch: draw from nothing else. Default: each sample once. A stream has its own order.
        """
        return random.permutation(len(train))

    def collate(self, samples: Sequence[Any]) -> Columns:
        """Samples of a dataset that is read one by one, as raw columns.

        Default: of mappings, each name's values, as one array if all have the same shape and else
        as an array of objects, which `prepare` may pad. Override it for samples that are tuples.
        """
        return columns_of_samples(samples)

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        """Raw columns as a batch. `random` is given in training only: augment with it.

        Columns named in `target_columns` are absent in inference and serving.
        """
        raise NotImplementedError

    def loss(self, outputs: Any, batch: Batch) -> Tensor:
        """The mean loss over the batch's samples, or over what `weight` counts; a scalar tensor."""
        raise NotImplementedError

    def weight(self, batch: Batch) -> float | Tensor:
        """What the loss of the batch is a mean over: by default the number of its samples.

        Of a mean over tokens their number, of weighted samples the sum of the weights. A step's
        loss is the sum of loss times weight over all of its batches, divided by the sum of their
        weights: the same on any number of workers.
        """
        return len(next(iter(batch.values())))

    def metrics(self) -> Mapping[str, Metric]:
        """New metrics by name; the mean loss is measured beside them under the name `loss`."""
        raise NotImplementedError

    def predictions(self, outputs: Any) -> Mapping[str, Tensor]:
        """The model's outputs as columns: `prediction` and, for classifiers, `probabilities`."""
        raise NotImplementedError

    def schedule(
        self, optimizer: torch.optim.Optimizer, total_steps: int
    ) -> torch.optim.lr_scheduler.LRScheduler | None:
        """The learning-rate schedule, stepped after each of `total_steps` steps but the last.

        A ReduceLROnPlateau goes by the monitored metric, and is stepped after each validation.
        None: the rate is constant.
        """
        return None

    def forward(self, model: nn.Module, batch: Batch) -> Any:
        """The model's outputs for a batch. Default: `model(batch["inputs"])`."""
        return model(batch["inputs"])

    def update_metric(
        self,
        metric: Metric,
        outputs: Any,
        batch: Batch,
        name: str = "",
    ) -> None:
        """Add a batch to the metric of that name; an override may leave `name` out.

        Default: `metric.update(outputs, batch["targets"])`.
        """
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
        """Restore the state that `state_dict` returned."""

    def example(self) -> dict[str, npt.NDArray[Any]]:
        """Two raw samples without targets, or the only one, for the model's signature."""
        dataset = indexed(self, "validation")
        columns = fetch(dataset, np.arange(min(2, len(dataset))))
        return {name: array for name, array in columns.items() if name not in self.target_columns}


def _children_of_containers(module: nn.Module) -> Iterator[nn.Module]:
    is_container = isinstance(module, nn.Sequential | nn.ModuleList)
    for child in module.children():
        # A list or dict of modules has no forward pass of its own.
        if is_container and not isinstance(child, nn.ModuleList | nn.ModuleDict):
            yield child
        else:
            yield from _children_of_containers(child)


def seed_generators(seed: int) -> None:
    """Seed every generator that a model or a transform may draw from.

    `torch.manual_seed` takes ten times as long: it also visits back ends that are absent.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 (users' code draws from it)
    random.seed(seed)


def update_metric(
    workload: Workload[Any], name: str, metric: Metric, outputs: Any, batch: Batch
) -> None:
    """Add a batch to a metric of the workload's, by its own `update_metric`."""
    if _takes_name(type(workload).update_metric):
        workload.update_metric(metric, outputs, batch, name=name)
    else:
        workload.update_metric(metric, outputs, batch)


@cache
def _takes_name(method: Callable[..., None]) -> bool:
    parameters = inspect.signature(method).parameters
    return "name" in parameters or any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def fits(workload: Workload[Any]) -> bool:
    """Whether the workload has a `fit` of its own."""
    return type(workload).fit is not Workload.fit


def weighs(workload: Workload[Any]) -> bool:
    """Whether the workload has a `weight` of its own."""
    return type(workload).weight is not Workload.weight


def predicts(workload: Workload[Any]) -> bool:
    """Whether the workload says what it predicts."""
    return type(workload).predictions is not Workload.predictions


def weight_of(workload: Workload[Any], batch: Batch) -> float:
    """The batch's weight. Raises WorkloadError for one that is no finite number from 0 on."""
    given: Any = workload.weight(batch)
    try:
        weight = float(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise WorkloadError(
            f"weight() of {type(workload).__name__} gives a {type(given).__name__} that is no "
            f"number: give one for the whole batch, as the sum of its samples' weights ({error})"
        ) from error
    if not math.isfinite(weight) or weight < 0:
        raise WorkloadError(
            f"weight() of {type(workload).__name__} gives {weight}: give what the loss is a mean "
            "over, a finite number from 0 on"
        )
    return weight


def recorded_forms(workload: Workload[Any]) -> Mapping[str, str]:
    """What each raw column of the validation split is, as its run recorded it.

    A numpy type, or of objects `texts`, `lists` and their kin. Empty outside of a run.
    """
    recorded = workload._recorded  # noqa: SLF001 (no concern of the workload's author)
    return recorded.forms if recorded else {}


def load_split(workload: Workload[Any], split: Split) -> Dataset | Stream:
    """The raw data of a split. Raises DataError if they are not what the run recorded."""
    # A split may be drawn (`random_split`): in every process it is, for each split, the same draw,
    # that of a process which has drawn nothing yet.
    seed_generators(_FIRST_SEED)
    with reading(partial("the {} split".format, split), partial(_listed_files, workload)):
        dataset = workload.dataset(split)
        if not is_stream(dataset):
            dataset = with_collate(workload, dataset)
    if recorded := workload._recorded:  # noqa: SLF001 (no concern of the workload's author)
        recorded.check(split, dataset)
    return dataset


def with_collate(workload: Workload[Any], dataset: Dataset) -> Dataset:
    """The dataset; its samples become columns by the workload's own `collate`, if it has one."""
    collates = type(workload).collate is not Workload.collate
    if collates and not gives_columns(dataset):
        return CollatedDataset(dataset, workload.collate)
    return dataset


def _listed_files(workload: Workload[Any]) -> Iterator[DataFile]:
    """The files of all its sources, as far as they were listed already."""
    if listed := workload._files:  # noqa: SLF001 (no concern of the workload's author)
        for name in listed.recorded.sources:
            yield from listed.files(name)


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
