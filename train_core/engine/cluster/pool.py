"""The pool: one worker process for each rank, alive as long as the driver computes.

Training, evaluation and batch inference run on it one after the other, so that only the first
waits for Python and torch to be imported. A worker that dies takes the others along: all are
replaced, as a rank cannot join a process group that is under way.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import PlacementGroup, placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from train_core.config import LOCAL, TrainConfig
from train_core.engine.cluster.placement import Rank, assign_ranks
from train_core.engine.cluster.resources import resources_of_worker
from train_core.engine.cluster.scaling import with_free_slots
from train_core.engine.cluster.timing import TIMING, Timing
from train_core.engine.cluster.worker_calls import Actor, Calls
from train_core.engine.cluster.worker_process import CONTROL, WORK, TrainWorker
from train_core.engine.distributed.rendezvous import LOOPBACK, Membership, RendezvousStore
from train_core.engine.distributed.stop_requests import post_stop
from train_core.storage.coordination.stop_request import StopRequest

_SMALLER_TRAINING = (
    "begin another run, with init_from, more accumulation_steps and a smaller batch_size"
)
_SMALLER_SCORING = "begin another run with a smaller eval_batch_size"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class _Workers:
    """Workers that were asked for together."""

    wanted: tuple[int, dict[str, float], str]
    placement: PlacementGroup
    actors: list[Actor]
    requested_at: float
    """On this process's monotonic clock."""

    def are_placed(self, timeout_s: float) -> bool:
        """Whether all of them have what they reserve, after `timeout_s` at most."""
        return bool(self.placement.wait(timeout_s))


class WorkerPool:
    """The workers of one driver. Its methods may be called from any thread.

    `preload` are the modules that every worker imports as it starts, before it is asked for
    anything.
    """

    def __init__(
        self, config: TrainConfig, preload: Sequence[str] = (), timing: Timing = TIMING
    ) -> None:
        self.timing = timing
        self._config = config
        self._preload = tuple(preload)
        self._workers: _Workers | None = None
        self._store: RendezvousStore | None = None
        self._storing = threading.Lock()
        # Held by the call that uses the workers, or waits for their start.
        self._one_at_a_time = threading.Lock()
        # Held from a look at the workers to what follows from it.
        self._changing = threading.RLock()
        self._has_ended = False
        self.ready_at = 0.0
        """When the last of the first workers had started, in seconds since 1970; 0: not yet."""

    def has_workers_for(self, config: TrainConfig) -> bool:
        """Whether there are workers, or some are starting, that have these resources each.

        Those that a call uses or waits for count as such: that call fails if they never start.
        """
        workers = self._workers
        if workers is None or workers.wanted[1] != resources_of_worker(config):
            return False
        if self._one_at_a_time.locked():
            return True
        # What new ones reserve may still be on its way back from earlier ones.
        settled_in_s = workers.requested_at + self.timing.settle_s - time.monotonic()
        return workers.are_placed(max(self.timing.placed_s, settled_in_s))

    def has_placed(self, config: TrainConfig) -> bool:
        """Whether as many workers as the configuration says have what they reserve."""
        workers = self._workers
        if workers is None or workers.wanted != _wanted(config):
            return False
        return workers.are_placed(self.timing.placed_s)

    def start(self, config: TrainConfig) -> None:
        """Have as many workers as the configuration says; they start in the background.

        Those that are there stay if they are what is asked for.
        """
        wanted = _wanted(config)
        with self._changing:
            self._config = config
            if self._workers and self._workers.wanted == wanted:
                return
            self.close()
            if self._has_ended:
                raise ConnectionError("the driver ends: it starts no workers")
            requested_at = time.monotonic()
            placement = placement_group([wanted[1]] * config.num_workers, config.placement_strategy)
            try:
                actors = self._new_actors(config, placement)
            except BaseException:
                remove_placement_group(placement)
                raise
            self._workers = _Workers(wanted, placement, actors, requested_at)

    def start_for_scoring(self, config: TrainConfig) -> None:
        """Have workers for shards that queue: those that are there, or as many as can be placed.

        Several threads may call it at once: all of them get the same workers.
        """
        with self._changing:
            if not self.has_workers_for(config):
                self.start(with_free_slots(config))

    def _new_actors(self, config: TrainConfig, placement: PlacementGroup) -> list[Actor]:
        # Ray's annotations do not know the last of them.
        options: dict[str, Any] = {
            "num_cpus": config.cpus_per_worker,
            "num_gpus": config.gpus_per_worker or 0,
            "max_restarts": 0,
            "concurrency_groups": {WORK: 1, CONTROL: 1},
        }
        worker: Any = ray.remote(**options)(TrainWorker)
        return [
            worker.options(
                scheduling_strategy=PlacementGroupSchedulingStrategy(placement, index)
            ).remote(self._preload)
            for index in range(config.num_workers)
        ]

    def replace(self) -> None:
        """Have new processes in place of all workers, at once."""
        self.close()
        try:
            self.start(self._config)
        except (ConnectionError, RayError) as error:
            _log.debug("no workers are started: %s", error)

    def end(self) -> None:
        """End the workers, and never start any again."""
        self._has_ended = True
        self.close()

    def close(self) -> None:
        """End the workers by SIGKILL and give back what they reserved."""
        with self._changing:
            workers, self._workers = self._workers, None
            if workers is None:
                return
            try:
                for actor in workers.actors:
                    ray.kill(actor)
                remove_placement_group(workers.placement)
            except Exception as error:  # noqa: BLE001 (whatever Ray raises when it is gone itself)
                _log.debug("the workers were not ended: %s", error)

    def run_ranks(
        self,
        group: str,
        function: str,
        arguments: Callable[[Membership], Sequence[Any]],
        *,
        check: Callable[[], None],
    ) -> list[Any]:
        """Run `module:name` on all workers, as the ranks of a process group of that name.

        Returns what each returned, in the order of ranks. `check` is called each second while
        workers start, and may raise. Raises the first cause if a rank fails: its own
        EvertrainError, ResourceError if Ray's memory monitor ended it, ConnectionError if its
        process, a connection or Ray ended.
        """
        with self._one_at_a_time:
            ranks = self._located(self._current(), check)
            store = self._rendezvous()
            calls = Calls(self._silent_after_s, self.timing)
            for actor, rank in ranks:
                own = store.membership(group, rank.rank, rank.world_size, rank.device)
                name = f"rank {rank.rank}"
                actor.set_up.remote(name, rank.environment())
                calls.add(name, actor, actor.run.remote(function, arguments(own)))
            return list(calls.wait_for_all(_SMALLER_TRAINING).values())

    def ask_to_stop(self, group: str, request: StopRequest) -> None:
        """Have the ranks of a group find the request, also those that do not run yet."""
        post_stop(self._rendezvous(), group, request)

    def map(
        self,
        function: str,
        arguments: Sequence[Sequence[Any]],
        on_result: Callable[[int, Any], Any] = lambda _, result: result,
    ) -> list[Any]:
        """What `module:name` returns for each of the arguments, which queue for the workers.

        Each result is handed to `on_result` as soon as it is there, with the number of its
        arguments, and what that returns is in the list. Raises what `run_ranks` does, and what
        `on_result` raises; after an error the workers are ended.
        """
        with self._one_at_a_time:
            workers = self._current()
            try:
                return self._map(workers, function, arguments, on_result)
            except BaseException:
                # What still runs would go on beside another try.
                with self._changing:
                    if self._workers is workers:
                        self.close()
                raise

    def _map(
        self,
        workers: _Workers,
        function: str,
        arguments: Sequence[Sequence[Any]],
        on_result: Callable[[int, Any], Any],
    ) -> list[Any]:
        free = [actor for actor, _ in self._located(workers)]
        queue = deque(enumerate(arguments))
        results: dict[int, Any] = {}
        numbers: dict[str, int] = {}
        calls = Calls(self._silent_after_s, self.timing)

        def hand_out() -> None:
            while queue and free:
                number, args = queue.popleft()
                call = f"call {number + 1} of {len(arguments)}"
                worker = f"a worker that evaluates or infers ({call})"
                numbers[worker] = number
                actor = free.pop()
                calls.add(worker, actor, actor.run.remote(function, args))

        hand_out()
        while calls.running:
            ended = calls.wait(_SMALLER_SCORING)
            free += [actor for _, actor, _ in ended]
            # No worker waits for what `on_result` does.
            hand_out()
            for worker, _, result in ended:
                results[numbers[worker]] = on_result(numbers[worker], result)
        return [results[number] for number in range(len(arguments))]

    def _current(self) -> _Workers:
        """The workers of this moment. Raises ConnectionError if there are none."""
        with self._changing:
            if self._workers is None:
                raise ConnectionError("the workers were ended before they had started")
            return self._workers

    def _located(
        self, workers: _Workers, check: Callable[[], None] = lambda: None
    ) -> list[tuple[Actor, Rank]]:
        """The workers in the order of ranks, as soon as all of them have started."""
        actors, deadline = workers.actors, time.monotonic() + self.timing.start_s
        calls = Calls(0, self.timing)
        for number, actor in enumerate(actors):
            calls.add(f"worker {number}", actor, actor.locate.remote())

        def check_start() -> None:
            check()
            if time.monotonic() > deadline:
                raise ConnectionError(f"the workers have not started in {self.timing.start_s:g} s")

        locations = calls.wait_for_all("", check_start)
        self.ready_at = self.ready_at or max(one.ready_at for one in locations.values())
        return [(actors[index], rank) for index, rank in assign_ranks(list(locations.values()))]

    def _rendezvous(self) -> RendezvousStore:
        with self._storing:
            self._store = self._store or RendezvousStore(self._host())
            return self._store

    def _host(self) -> str:
        if self._config.ray_address == LOCAL:
            return LOOPBACK
        return str(ray.util.get_node_ip_address())

    @property
    def _silent_after_s(self) -> float:
        """After how many seconds without an answer a worker counts as dead; 0: never."""
        timeout_s = self._config.hang_timeout_s
        return max(timeout_s, self.timing.least_silence_s) if timeout_s else 0


def _wanted(config: TrainConfig) -> tuple[int, dict[str, float], str]:
    return config.num_workers, resources_of_worker(config), config.placement_strategy
