"""Slots: places for workers, reserved together, whose workers can be replaced one by one."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import ray
from ray.exceptions import RayError
from ray.util.placement_group import (
    PlacementGroup,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from train_core.cluster.lent import lent_group
from train_core.cluster.outcomes import Died, failure_of
from train_core.cluster.resources import resources_of_worker
from train_core.cluster.worker_process import CONTROL, WORK, Actor, TrainWorker
from train_core.config import TrainConfig

# Ray's annotations do not know the second one.
_OPTIONS: dict[str, Any] = {"max_restarts": 0, "concurrency_groups": {WORK: 1, CONTROL: 1}}
_ANSWER_S = 0.5
"""How long a spare may take to answer as it is needed, and a worker as a spare is started."""
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


@dataclass
class Spare:
    """A worker that has no place yet, and what it was asked to prepare."""

    actor: Actor
    node: str
    """The id of its node: it replaces no worker on another one."""
    _prepared: ray.ObjectRef[None]
    _ping: ray.ObjectRef[None]

    def is_ready(self) -> bool:
        """Whether it has prepared itself, or has failed to."""
        return _has_settled(self._prepared)

    def error(self) -> Exception | None:
        """Why it died, if it has, soon after; what the function raised is no death."""
        for call in (self._prepared, self._ping):
            if (error := _death(call)) is not None:
                return error
        if _has_settled(self._ping):
            self._ping = self.actor.answer.remote()
        return None

    def lives(self) -> bool:
        """Whether it answers."""
        try:
            ray.get(self.actor.answer.remote(), timeout=_ANSWER_S)
        except RayError:
            return False
        return True


def _has_settled(call: ray.ObjectRef[None]) -> bool:
    return bool(ray.wait([call], timeout=0)[0])


def _death(call: ray.ObjectRef[None]) -> Exception | None:
    """Why the worker died on which the call ran, if that is known."""
    if not _has_settled(call):
        return None
    try:
        ray.get(call)
    except Exception as error:  # noqa: BLE001 (what the function raised, or Ray)
        failure = failure_of(error)
        return failure.cause if isinstance(failure, Died) else None
    return None


@dataclass(frozen=True)
class Slots:
    """Places that Ray has reserved, or will, each with a worker; their numbers begin with 0.

    A spare is a worker beside them, which reserves nothing and takes the place of one that died.
    """

    layout: Layout
    requested_at: float
    """On this process's monotonic clock."""
    workers: list[Actor]
    """The newest worker of each slot."""
    _reservation: PlacementGroup
    _is_lent: bool
    """Whether somebody else has reserved them, and gives them back."""
    _preload: Sequence[str]
    spares: list[Spare] = field(default_factory=list)

    @classmethod
    def start(cls, layout: Layout, preload: Sequence[str]) -> Self:
        """Reserve the slots and start a worker in each; both go on in the background.

        The workers import the modules `preload` as they start.
        """
        requested_at, lent = time.monotonic(), lent_group()
        reservation = lent or placement_group(
            [layout.resources] * layout.num_slots, layout.strategy
        )
        slots = cls(layout, requested_at, [], reservation, lent is not None, preload)
        try:
            slots.workers.extend(map(slots._start_worker, range(layout.num_slots)))
        except BaseException:
            slots._give_back()
            raise
        return slots

    def is_placed(self, timeout_s: float) -> bool:
        """Whether all slots have what they reserve, after `timeout_s` at most."""
        return bool(self._reservation.wait(timeout_s))

    def nodes(self) -> dict[int, str]:
        """The id of each slot's node, of those that are placed."""
        found: dict[int, str] = placement_group_table(self._reservation)["bundles_to_node_id"]
        return {slot: node for slot, node in found.items() if node}

    def without_spares(self, number: int, but_on: Collection[str] = ()) -> list[int]:
        """A slot of each node on which there are fewer than `number` spares.

        Of the nodes `but_on`, there is none.
        """
        counted = Counter(one.node for one in self.spares)
        on_nodes = {node: slot for slot, node in self.nodes().items() if counted[node] < number}
        return [slot for node, slot in on_nodes.items() if node not in but_on]

    def replace(self, slot: int) -> None:
        """End the worker of a slot by SIGKILL and start another there, while the others live on.

        The slot keeps what it reserves. Calls on the earlier worker settle as `Died`. Those on the
        new one wait until it has prepared itself.
        """
        ray.kill(self.workers[slot])
        self.workers[slot] = self._take_spare(slot) or self._start_worker(slot)

    def start_spare(self, slot: int, function: str, arguments: Sequence[Any]) -> bool:
        """Start a spare on the node of a slot, which then calls `module:name`.

        False: the node has just died. Raises RayError if the worker there does not answer.
        """
        threads = ray.get(self.workers[slot].threads.remote(), timeout=_ANSWER_S)
        if (node := self.nodes().get(slot)) is None:
            return False
        place = PlacementGroupSchedulingStrategy(self._reservation, slot)
        # As the process starts: numpy is there before the actor is.
        worker = _WORKER.options(
            num_cpus=0, scheduling_strategy=place, runtime_env={"env_vars": threads}
        )
        actor = worker.remote(self._preload, is_spare=True)
        prepared = actor.run.remote(function, arguments)
        self.spares.append(Spare(actor, node, prepared, actor.answer.remote()))
        return True

    def memory_bytes(self) -> list[int]:
        """The memory that each worker's process takes. Raises RayError if one does not answer."""
        asked = [worker.memory_bytes.remote() for worker in self.workers]
        found: list[int] = ray.get(asked, timeout=_ANSWER_S)
        return found

    def dead_spares(self) -> list[tuple[str, Exception]]:
        """The node of each spare that died, and why, each once; they are let go."""
        ended = [(one, one.error()) for one in self.spares]
        self.spares[:] = [one for one, error in ended if error is None]
        return [(one.node, error) for one, error in ended if error is not None]

    def _take_spare(self, slot: int) -> Actor | None:
        """A spare on the slot's node that lives, or still prepares itself; None: there is none.

        It is a spare no more. One that prepares itself is ahead of a new process, which would have
        to do all of the same.
        """
        node = self.nodes().get(slot) if self.spares else None
        for spare in [one for one in self.spares if one.node == node]:
            self.spares.remove(spare)
            if not spare.is_ready() or spare.lives():
                return spare.actor
        return None

    def end_spares(self) -> None:
        """End the spares by SIGKILL."""
        while self.spares:
            ray.kill(self.spares.pop().actor)

    def end(self) -> None:
        """End all workers by SIGKILL and give back what the slots reserve."""
        try:
            self.end_spares()
            for worker in self.workers:
                ray.kill(worker)
        finally:
            # It ends the workers that are left, too.
            self._give_back()

    def _give_back(self) -> None:
        if not self._is_lent:
            remove_placement_group(self._reservation)

    def _start_worker(self, slot: int) -> Actor:
        cpus, gpus = (self.layout.resources.get(name, 0) for name in ("CPU", "GPU"))
        place = PlacementGroupSchedulingStrategy(self._reservation, slot)
        worker = _WORKER.options(num_cpus=cpus, num_gpus=gpus, scheduling_strategy=place)
        return worker.remote(self._preload)
