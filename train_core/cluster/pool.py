"""The pool: one worker process for each rank, alive as long as the driver computes.

Training, evaluation and batch inference run on it one after the other, so that only the first
waits for Python and torch to be imported.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from ray.exceptions import RayError

from train_core.cluster.outcomes import (
    Died,
    DiedAtStartError,
    Outcome,
    Returned,
    TerminatedWorkerError,
    first_cause,
    values,
)
from train_core.cluster.rank_order import Rank, assign_ranks
from train_core.cluster.scaling import within_room
from train_core.cluster.slots import Layout, Slots
from train_core.cluster.spares import SpareKeeper, SpareRules
from train_core.cluster.worker_calls import Calls
from train_core.cluster.worker_process import Actor
from train_core.config import TrainConfig
from train_core.timing import TIMING, ClusterTiming

_SMALLER_SCORING = "begin another run with a smaller eval_batch_size"
_log = logging.getLogger(__name__)


class WorkerPool:
    """The workers of one driver, in slots. Its methods may be called from any thread.

    `preload` are the modules that every worker imports as it starts, before it is asked for
    anything.
    """

    def __init__(
        self,
        config: TrainConfig,
        preload: Sequence[str] = (),
        timing: ClusterTiming = TIMING.cluster,
    ) -> None:
        self.timing = timing
        self._config = config
        self._preload = tuple(preload)
        self._slots: Slots | None = None
        # Serialises the calls: the next one waits until the workers are free.
        self._calling = threading.Lock()
        # Guards check-then-act on `_slots`, also while a call is under way.
        self._changing = threading.RLock()
        self._has_ended = False
        self._has_replaced = False
        self._spare_keeper = SpareKeeper(timing)
        self.workers_ready_at = 0.0
        """When the last of the first workers had started, in seconds since 1970; 0: not yet."""

    def is_placed(self, config: TrainConfig) -> bool:
        """Whether the current workers are laid out as the configuration says, and are placed."""
        slots = self._slots
        if slots is None or slots.layout != Layout.of(config):
            return False
        return slots.is_placed(self.timing.placed_s)

    def start(self, config: TrainConfig) -> None:
        """Start as many workers as the configuration says, in the background.

        Keeps the current workers if count, resources and placement strategy match.
        """
        layout = Layout.of(config)
        with self._changing:
            self._config = config
            if self._slots and self._slots.layout == layout:
                return
            self.end_workers()
            if self._has_ended:
                raise ConnectionError("the driver ends: it starts no workers")
            self._slots = Slots.start(layout, self._preload)

    def start_for_scoring(self, config: TrainConfig) -> None:
        """Start as many workers as there is room for, for shards that queue.

        Keeps the current workers, however many, if their resources match. Several threads may call
        it at once: all of them get the same workers.
        """
        with self._changing:
            if not self._can_score(config):
                self.start(within_room(config))

    def _can_score(self, config: TrainConfig) -> bool:
        """Whether the current workers have the resources, or will soon, however many they are."""
        slots = self._slots
        if slots is None or slots.layout.resources != Layout.of(config).resources:
            return False
        if self._calling.locked():
            # The call that uses the workers, or waits for them, fails if they never start.
            return True
        # What new ones reserve may still be on its way back from earlier ones.
        settled_in_s = slots.requested_at + self.timing.settle_s - time.monotonic()
        return slots.is_placed(max(self.timing.placed_s, settled_in_s))

    def replace(self, which: Collection[int] | None = None) -> None:
        """Start another worker in these slots, by default in all, in the background."""
        with self._changing:
            slots = self._slots
            try:
                if slots is None:
                    self.start(self._config)
                else:
                    if which is None:
                        which = range(slots.layout.num_slots)
                    for slot in which:
                        slots.replace(slot)
                    self._has_replaced = True
            except Exception as error:  # noqa: BLE001 (whatever Ray raises when it is gone itself)
                _log.debug("the workers were not replaced: %s", error)
                self.end_workers()

    def end_for_good(self) -> None:
        """End the workers, and never start any again."""
        self._has_ended = True
        self.end_workers()

    def end_workers(self) -> None:
        """End the workers by SIGKILL and give back what they reserved."""
        with self._changing:
            slots, self._slots = self._slots, None
            if slots is None:
                return
            try:
                slots.end()
            except Exception as error:  # noqa: BLE001 (whatever Ray raises when it is gone itself)
                _log.debug("the workers were not ended: %s", error)

    def run_ranks(
        self,
        function: str,
        arguments: Callable[[Rank], Sequence[Any]],
        *,
        check: Callable[[], None],
        end_others: Callable[[Mapping[int, Outcome]], bool] = lambda _: False,
        cut_off: Callable[[], None] = lambda: None,
        spares: SpareRules | None = None,
        leaving: Callable[[], Collection[int]] = tuple,
    ) -> dict[int, Outcome]:
        """Run `module:name` on all workers, as the ranks of one process group.

        Returns the outcome of each slot, in the order of ranks, once all have returned or one has
        failed. Then `end_others` is called with the outcomes; if it has asked the others to end,
        they are waited for, `ClusterTiming.leave_s` at most; `cut_off` is called when half of it is
        over. Ranks that `leaving` gives, which is called each second, are ended, and have failed.
        `check` is called each second while workers start, and when all have started; it may
        raise. `spares` are started while the ranks run, and end with them. Raises DiedAtStartError
        for workers that do not start in `ClusterTiming.start_s`, or another first cause, and
        ConnectionError if Ray itself ended.
        """
        with self._calling:
            slots = self._current()
            calls = Calls(self._silent_after_s, self.timing)
            ranks = self._ranks(slots, check)
            for slot, worker, rank in ranks:
                worker.set_up.remote(f"rank {rank.rank}", rank.environment())
                calls.add(slot, worker, worker.run.remote(function, arguments(rank)))
            self._spare_keeper.begin(has_lost_worker=self._has_replaced)

            def each_second() -> None:
                for number in leaving():
                    calls.expel(ranks[number][0], TerminatedWorkerError("it got SIGTERM"))
                self._keep_spares(slots, spares)

            outcomes = calls.settle(each_second)
            if calls.running and end_others(outcomes):
                outcomes |= calls.end(self.timing.leave_s / 2)
                if calls.running:
                    cut_off()
                    outcomes |= calls.end(self.timing.leave_s / 2)
            if all(isinstance(one, Returned) for one in outcomes.values()):
                slots.end_spares()
            return outcomes

    def _keep_spares(self, slots: Slots, wanted: SpareRules | None) -> None:
        """Start what is missing of the spares that are wanted, if it is time."""
        if wanted is None:
            return
        try:
            self._spare_keeper.keep(slots, wanted)
        except RayError as error:
            # A worker died, or Ray did, which the ranks' calls tell.
            _log.debug("a spare was not started: %s", error)
        except Exception as error:  # noqa: BLE001 (the training needs no spare)
            self._spare_keeper.give_up()
            _log.warning("no spare is started: %s: %s", type(error).__name__, error)

    def map(
        self,
        function: str,
        arguments: Sequence[Sequence[Any]],
        on_result: Callable[[int, Any], Any] = lambda _, result: result,
    ) -> list[Any]:
        """What `module:name` returns for each of the arguments, which queue for the workers.

        Each result is handed to `on_result` as soon as it is there, with the number of its
        arguments, and what that returns is in the list. Raises the first cause if a call fails:
        its own EvertrainError, ResourceError if Ray's memory monitor ended the worker,
        ConnectionError if the worker, a connection or Ray ended; and what `on_result` raises.
        After an error the workers are ended.
        """
        with self._calling:
            slots = self._current()
            asked = list(slots.workers)
            try:
                return self._map(slots, function, arguments, on_result)
            except BaseException:
                # What still runs would go on beside another try.
                with self._changing:
                    if self._slots is slots and slots.workers == asked:
                        self.end_workers()
                raise

    def _map(
        self,
        slots: Slots,
        function: str,
        arguments: Sequence[Sequence[Any]],
        on_result: Callable[[int, Any], Any],
    ) -> list[Any]:
        workers = {slot: worker for slot, worker, _ in self._ranks(slots)}
        free = list(workers)
        queue = deque(enumerate(arguments))
        results: dict[int, Any] = {}
        numbers: dict[int, int] = {}
        """By slot: the number of the arguments that its worker has."""
        calls = Calls(self._silent_after_s, self.timing)

        def hand_out() -> None:
            while queue and free:
                slot = free.pop()
                numbers[slot], args = queue.popleft()
                worker = workers[slot]
                calls.add(slot, worker, worker.run.remote(function, args))

        hand_out()
        while calls.running:
            settled = calls.wait()
            ended = [numbers[slot] for slot in settled]
            names = [f"call {number + 1} of {len(arguments)}" for number in ended]
            outcomes = {
                f"a worker that evaluates or infers ({name})": outcome
                for name, outcome in zip(names, settled.values(), strict=True)
            }
            returned = values(outcomes, _SMALLER_SCORING)
            free.extend(settled)
            # No worker waits for what `on_result` does.
            hand_out()
            for number, result in zip(ended, returned, strict=True):
                results[number] = on_result(number, result)
        return [results[number] for number in range(len(arguments))]

    def _current(self) -> Slots:
        """The slots of this moment. Raises ConnectionError if there are none."""
        with self._changing:
            if self._slots is None:
                raise ConnectionError("the workers were ended before they had started")
            return self._slots

    def _ranks(
        self, slots: Slots, check: Callable[[], None] = lambda: None
    ) -> list[tuple[int, Actor, Rank]]:
        """The slots with their workers in the order of ranks, as soon as all have started."""
        placed_at = time.monotonic()
        deadline = placed_at + self.timing.start_s
        calls, workers = Calls(0, self.timing), list(slots.workers)
        for slot, worker in enumerate(workers):
            calls.add(slot, worker, worker.locate.remote())

        def check_start() -> None:
            nonlocal placed_at
            check()
            if not self._has_replaced or slots.is_placed(self.timing.placed_s):
                placed_at = time.monotonic()
            elif time.monotonic() > placed_at + self.timing.settle_s:
                # Ray has missed their node only now, and no other one has room.
                raise DiedAtStartError(set(calls.running), "the cluster has no room for them")
            if time.monotonic() > deadline:
                # One that does not come to its end as it loads data is no better than a dead one.
                cause = f"the workers have not started in {self.timing.start_s:g} s"
                raise DiedAtStartError(set(calls.running), cause)

        outcomes = calls.settle(check_start)
        of_workers = {f"worker {slot}": one for slot, one in outcomes.items()}
        dead = {slot for slot, one in outcomes.items() if isinstance(one, Died)}
        cause = first_cause(of_workers, "")
        if dead and isinstance(cause, ConnectionError):
            raise DiedAtStartError(dead, str(cause))
        locations = values(of_workers, "")
        # What it has to say of the time in which the last one started.
        check()
        self.workers_ready_at = self.workers_ready_at or max(one.ready_at for one in locations)
        return [(slot, workers[slot], rank) for slot, rank in assign_ranks(locations)]

    @property
    def _silent_after_s(self) -> float:
        """After how many seconds without an answer a worker counts as dead; 0: never."""
        timeout_s = self._config.hang_timeout_s
        return max(timeout_s, self.timing.least_silence_s) if timeout_s else 0
