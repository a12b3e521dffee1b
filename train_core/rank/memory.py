"""What a process remembers from one attempt at a run to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import torch

from train_core.config import TrainConfig
from train_core.rank.checkpoint.kept import Kept
from train_core.rank.loaded_workload import Data, LoadedWorkload
from train_core.storage.run_folder import RunFolder


@dataclass(frozen=True)
class Modes:
    """What an attempt may leave otherwise in a process, beside what its trainer sets."""

    dtype: torch.dtype
    has_grad: bool
    has_autocast: bool

    @classmethod
    def current(cls) -> Self:
        """Those of this process and thread now."""
        has_autocast = torch.is_autocast_enabled("cpu")
        return cls(torch.get_default_dtype(), torch.is_grad_enabled(), has_autocast)

    def set(self) -> None:
        """Let the next attempt begin with them."""
        torch.set_default_dtype(self.dtype)
        torch.set_grad_enabled(self.has_grad)
        torch.set_autocast_enabled("cpu", self.has_autocast)


@dataclass
class Memory:
    """The state and the data of one run.

    The workload is made anew for each attempt. Data that do not refer to it, and whose loading has
    left it as it was, are used again; else they are loaded again.
    """

    run: str = ""
    """The run's address."""
    kept: Kept | None = None
    loaded: LoadedWorkload | None = None
    """What a spare has loaded for its first attempt."""
    data: Data | None = None
    """Those of the attempt before."""
    modes: Modes | None = None
    """Those with which the first attempt of this process began."""

    def turn_to(self, run: str) -> None:
        """Forget another run."""
        if self.run != run:
            self.run, self.kept, self.loaded, self.data = run, None, None, None

    def prepare(self, folder: RunFolder, config: TrainConfig) -> LoadedWorkload:
        """Load the run's workload and data for the next attempt. Raises as `of_run`."""
        self.loaded = LoadedWorkload.of_run(folder, config)
        return self.loaded

    def load(self, folder: RunFolder, config: TrainConfig) -> LoadedWorkload:
        """The run's workload, which nobody has used, and its data. Raises as `of_run`."""
        loaded, data = self.loaded, self.data
        self.loaded = self.data = None
        return loaded or LoadedWorkload.of_run(folder, config, data)
