"""What a launcher sends to the workers of an attempt, and the reports that they make."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from train_core.config import TrainConfig
from train_core.storage.records.manifest import FileEntry
from train_core.storage.records.run_record import Origin
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter
from train_core.timing import TIMING, FunctionTiming

ABORT = "abort"
"""The key in the driver's store that ends the attempt at once."""


@dataclass(frozen=True)
class FunctionTask:
    """One attempt at a run, as its workers need it. It travels to them by pickle, within Ray."""

    url: str
    """The address of the run folder: Ray Train gives its workers another working directory."""
    attempt: int
    config: TrainConfig
    host: str
    """Where the driver's store is."""
    port: int
    start: str | None
    """The newest reported folder: `get_checkpoint` gives it first, and reports are counted from it.

    What was reported after it is reported again.
    """
    origin: Origin | None
    """The folder of another run that it gives while this one has none; with its login."""
    has_validation: bool = False
    """Whether there is a validation function."""
    timing: FunctionTiming = TIMING.functions

    @property
    def group(self) -> str:
        """The prefix of the attempt's keys in the driver's store."""
        return f"{self.folder.name}/{self.attempt}"

    @property
    def folder(self) -> RunFolder:
        """The run folder."""
        return RunFolder.at(self.url)


class OpenFolder(Protocol):
    """A reported folder whose files can be read."""

    def names(self) -> Sequence[str]:
        """The paths of all files in it, as names in a checkpoint, in their order.

        Raises WorkloadError if it is no folder, or has a name that not every storage can have.
        """

    def store(self, writer: RunWriter, name: str, key: str) -> FileEntry:
        """Store one of its files at the key in the run folder; the file's size and digest."""


class Source(Protocol):
    """A folder that a rank reports."""

    def opened(self) -> AbstractContextManager[OpenFolder]:
        """The folder, as long as the block runs."""

    def place(self) -> str:
        """Where it lies: the same for all ranks that report one and the same folder."""

    def clean_up(self) -> None:
        """Called once the folder is committed."""


@dataclass(frozen=True)
class Report:
    """One call of `ray.train.report` on one rank."""

    number: int
    """All ranks count alike, over all attempts."""
    metrics: Mapping[str, Any]
    source: Source | None = None
    """The reported folder; None: this rank reported none."""
    name: str = ""
    """`checkpoint_dir_name`, if the function gave one."""
    validation: Mapping[str, Any] | None = None
    """How a validation function measures the folder, as in its manifest; None: none does."""


@dataclass(frozen=True)
class Settled:
    """How a report ended on all ranks."""

    checkpoint: str | None
    """The checkpoint that it became; None if no rank reported a folder."""
    stop: str | None
    """Why the training is to end now; None: it goes on."""


class DamagedFolderError(Exception):
    """A reported folder of this run that was to be resumed from is damaged: its name, and how."""

    def __init__(self, checkpoint: str, fault: str) -> None:
        super().__init__(checkpoint, fault)
        self.checkpoint, self.fault = checkpoint, fault


class TrainingEnds(BaseException):
    """Ends a training function after a report, as it was requested to end.

    A BaseException, as a function may catch Exception and go on.
    """
