"""What a process remembers from one attempt at a run to the next."""

from __future__ import annotations

from dataclasses import dataclass

from train_core.config import TrainConfig
from train_core.rank.checkpoint.kept import Kept
from train_core.rank.loaded_workload import LoadedWorkload
from train_core.storage.run_folder import RunFolder


@dataclass
class Memory:
    """The state and the data of one run.

    Datasets are the process's, with all that they have loaded and verified; the workload is made
    anew for each attempt.
    """

    run: str = ""
    """The run's address."""
    kept: Kept | None = None
    loaded: LoadedWorkload | None = None

    def turn_to(self, run: str) -> None:
        """Forget another run."""
        if self.run != run:
            self.run, self.kept, self.loaded = run, None, None

    def load(self, folder: RunFolder, config: TrainConfig) -> LoadedWorkload:
        """The run's workload, which nobody has used, and its data. Raises as `of_run`."""
        if self.loaded is None:
            self.loaded = LoadedWorkload.of_run(folder, config)
            return self.loaded
        return self.loaded.with_new_workload()
