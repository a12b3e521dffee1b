"""Attempts whose ranks are the workers of a pool."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from functools import partial

from train_core.cluster.lent import lent_places
from train_core.cluster.outcomes import (
    DiedAtStartError,
    Outcome,
    first_cause,
    is_survivor,
    kept_step,
    values,
)
from train_core.cluster.pool import WorkerPool
from train_core.cluster.rank_order import Rank
from train_core.cluster.resources import drained_under_workers
from train_core.cluster.runtime import driver_host
from train_core.cluster.scaling import ClusterWatch, number_of_workers, room_for
from train_core.cluster.spares import SpareRules
from train_core.config import LOCAL, TrainConfig
from train_core.driver.attempts.supervisor import Attempt, AttemptOutcome
from train_core.entry_points import PREPARE_SPARE, TRAIN_RANK
from train_core.errors import StorageError
from train_core.policy.membership import keeps_workers
from train_core.policy.restarts import Asked, Ended
from train_core.rank.distributed.earlier_commit import post_earlier
from train_core.rank.distributed.pace import Pace
from train_core.rank.distributed.rendezvous import Membership, RendezvousStore
from train_core.rank.distributed.stop_requests import LOST, post_stop, ranks_that_leave
from train_core.storage.objects.retry_policy import SHORT
from train_core.storage.run_folder import RunFolder

_SMALLER_TRAINING = (
    "begin another run, with init_from, more accumulation_steps and a smaller batch_size"
)
_log = logging.getLogger("train_core.driver")


def is_fixed(config: TrainConfig) -> bool:
    """Whether the number of workers is known before the cluster is looked at."""
    return config.ray_address == LOCAL and not config.min_workers


class PoolLauncher:
    """Runs attempts on a pool, with as many workers as there is room for.

    `function` is what each rank runs. `pace` is that of who follows the training.
    """

    def __init__(
        self, pool: WorkerPool, function: str = TRAIN_RANK, pace: Pace | None = None
    ) -> None:
        self._pool = pool
        self._pace = pace
        self._function = function

    def run(self, attempt: Attempt) -> AttemptOutcome:
        """Run the ranks until they end; one that died is replaced, or all are (`_can_go_on`)."""
        try:
            store = RendezvousStore(driver_host(attempt.config))
            attempt.requests.send_by(partial(post_stop, store, _group(attempt)))
            if self._pace is not None:
                self._pace.post_to(store, _group(attempt))
            if is_fixed(attempt.config):
                self._pool.start(attempt.config)
                return self._train(store, attempt, attempt.config)
            return self._train_where_there_is_room(store, attempt)
        except ConnectionError as error:
            in_place = attempt.config.goes_on_in_place
            if in_place or is_fixed(attempt.config):
                dead = error.slots if isinstance(error, DiedAtStartError) else None
                self._pool.replace(dead if in_place else None)
                if in_place and dead and len(dead) < attempt.config.num_workers:
                    # Others may wait with what they have kept.
                    return AttemptOutcome(Ended.LOST, error, has_survivors=True)
            else:
                # How many there is room for is seen once these are gone.
                self._pool.end_workers()
            return AttemptOutcome(Ended.LOST, error)
        except Exception as error:  # noqa: BLE001 (the supervisor raises it)
            # Ranks that wait for the one that failed would wait for half an hour.
            self._pool.end_workers()
            return AttemptOutcome(Ended.FAILED, error)

    def _train_where_there_is_room(
        self, store: RendezvousStore, attempt: Attempt
    ) -> AttemptOutcome:
        workers, timing = attempt.config.num_workers, self._pool.timing
        is_placed = self._pool.is_placed(attempt.config)
        if not keeps_workers(is_placed=is_placed, drained=drained_under_workers()):
            # The resources of the pool's own workers count as room as well, except on a node that
            # is drained: they are freed before the room is measured.
            self._pool.end_workers()
            poll = partial(room_for, attempt.config)
            workers = number_of_workers(attempt.config, poll, attempt.check_stop, timing)
        config = attempt.config.model_copy(update={"num_workers": workers})
        self._pool.start(config)
        watch = ClusterWatch(attempt.requests.ask_to_move, attempt.config, workers, timing)
        with watch.watching():
            _log.info("training on %d workers", workers)
            return self._train(store, attempt, config)

    def _train(
        self, store: RendezvousStore, attempt: Attempt, config: TrainConfig
    ) -> AttemptOutcome:
        """Run the ranks of one group. Raises the first cause if one failed."""

        def arguments(rank: Rank) -> tuple[str, TrainConfig, int, Membership]:
            own = store.membership(_group(attempt), rank.rank, rank.world_size, rank.device)
            return attempt.folder.url, config, attempt.number, own

        def end_others(outcomes: Mapping[int, Outcome]) -> bool:
            cause = first_cause(_by_rank(outcomes), _SMALLER_TRAINING)
            is_lost = config.goes_on_in_place and isinstance(cause, ConnectionError)
            if is_lost:
                # Some may be in no collective, which would tell them.
                store.post(_group(attempt), LOST, str(cause))
            return is_lost

        post_earlier(store, _group(attempt), attempt.earlier)
        outcomes = self._pool.run_ranks(
            self._function,
            arguments,
            check=attempt.check_stop,
            end_others=end_others,
            # A rank that waits for others to join is told in no other way.
            cut_off=store.close,
            spares=_spares(attempt, config),
            leaving=_Leaving(store, attempt, config),
        )
        try:
            # It gives how each rank ended; rank 0 knows what was committed.
            ends = values(_by_rank(outcomes), _SMALLER_TRAINING)
        except ConnectionError as error:
            if not config.goes_on_in_place:
                raise
            self._pool.replace({s for s, one in outcomes.items() if not is_survivor(one)})
            has_survivors = any(map(is_survivor, outcomes.values()))
            kept = kept_step(outcomes.values())
            return AttemptOutcome(Ended.LOST, error, has_survivors=has_survivors, kept_step=kept)
        leaving = {slot for slot, end in zip(outcomes, ends, strict=True) if end.is_leaving}
        if leaving:
            attempt.requests.ask_to_move("a worker got SIGTERM")
            self._pool.replace(leaving)
        first = ends[0]
        return AttemptOutcome(given_up_at=None if first.has_saved else first.saved_step)


class _Leaving:
    """The ranks that are to be ended as they got SIGTERM, and others have the state."""

    def __init__(self, store: RendezvousStore, attempt: Attempt, config: TrainConfig) -> None:
        self._store, self._attempt, self._config = store, attempt, config
        self._seen: set[int] = set()

    def __call__(self) -> Collection[int]:
        """Those of which nothing new was heard since the last call, unless all got it.

        Who ends all of them does so one after the other. Then a checkpoint is saved first, as by a
        request to stop, during which no rank is ended.
        """
        is_asked = self._attempt.requests.asked is not Asked.NOTHING
        if is_asked or not self._config.goes_on_in_place:
            return ()
        before = self._seen
        workers = self._config.num_workers
        self._seen = ranks_that_leave(self._store, _group(self._attempt), workers)
        if len(self._seen) == workers:
            self._attempt.requests.ask_to_move("all workers got SIGTERM")
            return ()
        return self._seen if self._seen == before else ()


def _spares(attempt: Attempt, config: TrainConfig) -> SpareRules | None:
    """The spares that the attempt is to have."""
    if not config.goes_on_in_place:
        return None
    # What memory a node has, and how long a worker's data take there, is not known here.
    number = 0 if config.spares is None and config.ray_address != LOCAL else config.spares
    if lent_places():
        # Who has lent them has counted what trials take.
        number = 0
    folder = attempt.folder.with_retries(SHORT)
    return SpareRules(number, PREPARE_SPARE, (folder.url, config), partial(_left_s, folder))


def _left_s(folder: RunFolder) -> float | None:
    """How long the training will go on, as rank 0 has told; None: nobody knows."""
    try:
        live = folder.live() or {}
    except StorageError:
        return None
    left_s = live.get("eta_s")
    return left_s if isinstance(left_s, (int, float)) else None


def _by_rank(outcomes: Mapping[int, Outcome]) -> dict[str, Outcome]:
    return {f"rank {rank}": one for rank, one in enumerate(outcomes.values())}


def _group(attempt: Attempt) -> str:
    """The name of the attempt's process group."""
    return f"{attempt.folder.name}/{attempt.number}"
