"""A checkpoint of Tune's: it names the run and the checkpoint, and has the weights beside that.

Tune copies each checkpoint that it is given into the trial's folder, and deletes copies by its own
rules. What a trial goes on from is the checkpoint of the run folder, which is verified and has all
of the state.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any, Literal, Self

from train_core.client.checkpoint import Checkpoint
from train_core.errors import CheckpointError, ConfigError
from train_core.results import Result
from train_core.storage.records.documents import Count, parse_part
from train_core.storage.records.names import MODEL_FILE, CheckpointName
from train_core.storage.run_folder import RunFolder

FILE = "evertrain.json"
_MOST_BYTES = 2**16


class TuneCheckpoint(Result):
    """What a checkpoint of Tune's names. Its folder has the weights beside it.

    Of a workload, that is model.safetensors; of a training function all that it has reported.

    >>> from train_core.tune import TuneCheckpoint
    >>> TuneCheckpoint.of(result.checkpoint).checkpoint().uri  # doctest: +SKIP
    """

    format: Literal[1] = 1
    run: str
    """The address of the run folder."""
    trial: str
    """The trial whose run it is."""
    step: Count
    """Of the newest report; 0: there was none."""
    name: str = ""
    """The name of the newest checkpoint up to there; empty: the trial has reported none."""
    digest: str = ""
    """BLAKE3 of the checkpoint's manifest."""
    epochs: Count = 0
    """All epochs behind the weights, also those in runs that they were taken from."""
    steps: Count = 0
    """All optimizer steps behind them."""

    @classmethod
    def of(cls, checkpoint: Any) -> Self:
        """What a `ray.tune.Checkpoint` names. Raises ConfigError if it is none of evertrain's."""
        with checkpoint.as_directory() as folder:
            return cls.read(folder)

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Self:
        """What the checkpoint in a local folder names. Raises ConfigError and CheckpointError."""
        path = Path(folder, FILE)
        try:
            with path.open("rb") as file:
                data = file.read(_MOST_BYTES)
        except FileNotFoundError as error:
            raise ConfigError(f"{folder} is no checkpoint of a trial: it has no {FILE}") from error
        return parse_part(cls, data, str(path), "what a checkpoint of a trial names")

    def write(self, folder: str | os.PathLike[str]) -> None:
        """Write it into a local folder, and the weights.

        Raises CheckpointError and StorageError.
        """
        place = Path(folder)
        if self.name:
            with self.checkpoint().as_directory() as files:
                if (files / MODEL_FILE).exists() and not self._is_function():
                    shutil.copyfile(files / MODEL_FILE, place / MODEL_FILE)
                else:
                    shutil.copytree(files, place, dirs_exist_ok=True)
        # Last: a folder without it is none of ours.
        (place / FILE).write_text(self.model_dump_json(indent=1) + "\n")

    def with_checkpoint_of(self, before: Self | None) -> Self:
        """With the checkpoint of an earlier report of the run, where this one has none."""
        if self.name or before is None or before.run != self.run:
            return self
        return before.model_copy(update={"step": self.step})

    def without_checkpoint(self) -> Self:
        """As of a trial that has reported none."""
        return self.model_copy(update={"name": "", "digest": "", "epochs": 0, "steps": 0})

    def checkpoint(self) -> Checkpoint:
        """The checkpoint of the run folder.

        Raises ConfigError if there is none, and CheckpointError if it is another one by now.
        """
        folder = RunFolder.at(self.run)
        name = CheckpointName.parse(self.name)
        if name is None:
            raise ConfigError(f"trial {self.trial} has reported no checkpoint")
        try:
            found = folder.checkpoint(name)
        except FileNotFoundError as error:
            raise ConfigError(
                f"checkpoint {self.name} of {folder.url}, which trial {self.trial} reported, is "
                "deleted: a trial that is paused or copied needs it. Let its runs keep more "
                "(keep_last, keep_best), or leave their parameters out, and they keep all"
            ) from error
        if found.digest != self.digest:
            raise CheckpointError(f"{folder.store.uri(found.key)} is not what was reported")
        return Checkpoint.in_run(folder, found)

    def _is_function(self) -> bool:
        return self.checkpoint().committed.manifest.reported is not None
