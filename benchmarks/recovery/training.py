"""A training of evertrain's whose ranks are killed, and the spares that wait beside them."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import psutil

from benchmarks.recovery.notes import CYCLE_S, NUM_RANKS, Notes, wait_until
from benchmarks.recovery.workload import loaded_mark
from train_core import TrainConfig
from train_core.client.driver_handle import Driver
from train_core.errors import StoppedError
from train_core.policy.end_status import EndStatus
from train_core.requests import DriverRequest
from train_core.stages import TRAIN

STATE_MB, BATCH_SIZE = 14.0, 64
DRIVER = "train_core.driver.process_entry"
_IDLE_WORKER = "ray::TrainWorker"
"""The title of a worker that runs nothing: of a spare that is ready."""


class Training:
    """One of ours, in a thread, with what it notes of its steps."""

    def __init__(
        self,
        folder: Path,
        *,
        storage: str = "",
        tracking_uri: str = "",
        state_mb: float = STATE_MB,
        dataset_s: float = 0,
        num_workers: int = NUM_RANKS,
        spares: int = 1,
        **config: Any,
    ) -> None:
        self.notes = Notes(folder / "notes", num_workers)
        self.log: list[tuple[float, str]] = []
        self.spares = spares
        asked = TrainConfig(
            workload="benchmarks.recovery.workload:Noted",
            settings={
                "state_mb": state_mb,
                "notes": str(self.notes.folder),
                "dataset_s": dataset_s,
            },
            batch_size=BATCH_SIZE,
            num_workers=num_workers,
            num_shards=num_workers,
            # All of them share two cores.
            cpus_per_worker=min(1, 2 / num_workers),
            # No training ends before its last kill.
            epochs=100,
            checkpoint_every_s=CYCLE_S,
            checkpoint_every_epochs=0,
            gpus_per_worker=0,
            monitor="validation/loss",
            monitor_order="min",
            spares=spares,
            **config,
        )
        storage = storage or str(folder / "runs")
        request = DriverRequest(storage=storage, run="run", config=asked, tracking_uri=tracking_uri)
        self.driver = Driver.start(request, lambda line: self.log.append((time.time(), line)))
        self._thread = threading.Thread(target=self._train)

    def __enter__(self) -> Self:
        self.driver.prepared()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.driver.close(EndStatus.KILLED)
        self._thread.join()

    def warned_at(self, after: float) -> float:
        """When the driver first said after that moment that it begins again."""
        found = (at for at, line in self.log if at > after and "begins again" in line)
        wait_until(lambda: any("begins again" in line for at, line in self.log if at > after))
        return next(found)

    def wait_until_steady(self) -> None:
        """Wait until all ranks train and the spares are ready."""
        self.notes.wait_for_steps(5)
        wait_until(lambda: len(self.ready_spares()) >= self.spares)

    def ready_spares(self) -> list[psutil.Process]:
        """The workers that are no rank, and have nothing left to prepare."""
        beside = self.workers_beside()
        idle = [one for one, title in beside if title == _IDLE_WORKER]
        # Ray calls a worker idle once it has answered, while it still loads its data.
        return [one for one in idle if loaded_mark(self.notes.folder, one.pid).exists()]

    def workers_beside(self) -> Iterator[tuple[psutil.Process, str]]:
        """The workers that are no rank, or not yet, and their titles."""
        ranks = {self.notes.rank(number)["pid"] for number in range(self.notes.num_ranks)}
        for one in child(psutil.Process(), DRIVER).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                title = " ".join(one.cmdline()[:1])
                if one.pid not in ranks and title.startswith(_IDLE_WORKER):
                    yield one, title

    def _train(self) -> None:
        with suppress(StoppedError):
            self.driver.ask(TRAIN, TRAIN.arguments())


def child(process: psutil.Process, title: str) -> psutil.Process:
    """The process below this one that is called so."""
    for one in process.children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if any(title in argument for argument in one.cmdline()[:3]):
                return one
    raise RuntimeError(f"there is no {title} below {process}")
