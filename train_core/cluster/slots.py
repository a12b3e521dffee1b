"""Slots: places for workers, reserved together, whose workers can be replaced one by one."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import ray
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from train_core.cluster.resources import resources_of_worker
from train_core.cluster.worker_process import CONTROL, WORK, Actor, TrainWorker
from train_core.config import TrainConfig

# Ray's annotations do not know the second one.
_OPTIONS: dict[str, Any] = {"max_restarts": 0, "concurrency_groups": {WORK: 1, CONTROL: 1}}
_WORKER: Any = ray.remote(**_OPTIONS)(TrainWorker)


@dataclass(frozen=True)
class Layout:
    """How many slots there are, what each reserves, and how Ray spreads them over nodes."""

    num_slots: int
    resources: dict[str, float]
    strategy: str

    @classmethod
    def of(cls, config: TrainConfig) -> Self:
        """A slot for each worker of the configuration."""
        return cls(config.num_workers, resources_of_worker(config), config.placement_strategy)


@dataclass(frozen=True)
class Slots:
    """Places that Ray has reserved, or will, each with a worker; their numbers begin with 0.

    A spare's place is a slot that no call gives a rank.
    """

    layout: Layout
    requested_at: float
    """On this process's monotonic clock."""
    workers: list[Actor]
    """The newest worker of each slot."""
    _reservation: PlacementGroup
    _preload: Sequence[str]

    @classmethod
    def start(cls, layout: Layout, preload: Sequence[str]) -> Self:
        """Reserve the slots and start a worker in each; both go on in the background.

        The workers import the modules `preload` as they start.
        """
        requested_at = time.monotonic()
        reservation = placement_group([layout.resources] * layout.num_slots, layout.strategy)
        slots = cls(layout, requested_at, [], reservation, preload)
        try:
            slots.workers.extend(map(slots._start_worker, range(layout.num_slots)))
        except BaseException:
            remove_placement_group(reservation)
            raise
        return slots

    def is_placed(self, timeout_s: float) -> bool:
        """Whether all slots have what they reserve, after `timeout_s` at most."""
        return bool(self._reservation.wait(timeout_s))

    def replace(self, slot: int) -> None:
        """End the worker of a slot by SIGKILL and start another there, while the others live on.

        The slot keeps what it reserves. Calls on the earlier worker settle as `Died`.
        """
        ray.kill(self.workers[slot])
        self.workers[slot] = self._start_worker(slot)

    def end(self) -> None:
        """End all workers by SIGKILL and give back what the slots reserve."""
        try:
            for worker in self.workers:
                ray.kill(worker)
        finally:
            # It ends the workers that are left, too.
            remove_placement_group(self._reservation)

    def _start_worker(self, slot: int) -> Actor:
        return _WORKER.options(
            num_cpus=self.layout.resources.get("CPU", 0),
            num_gpus=self.layout.resources.get("GPU", 0),
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._reservation, slot),
        ).remote(self._preload)
