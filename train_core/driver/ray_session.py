"""The Ray of one request, and the pool of workers on it: of this machine or of a cluster."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future
from typing import TYPE_CHECKING

from train_core.cluster.resources import check_resources, fits_here, with_gpus
from train_core.config import TrainConfig
from train_core.described_errors import describe, rebuild
from train_core.driver.runner import runner_of
from train_core.entry_points import MEASURE_SHARD, TRAIN_RANK
from train_core.timing import TIMING, Timing

if TYPE_CHECKING:
    from train_core.cluster.pool import WorkerPool

PRELOAD = (*(name.partition(":")[0] for name in (TRAIN_RANK, MEASURE_SHARD)), "torch._dynamo")
"""What the workers import as they start: torch, what trains and evaluates, and what torch imports
with the first optimizer.
"""
_log = logging.getLogger("train_core.driver")


class RaySession(ABC):
    """A Ray and the pool of workers on it, which end with this process at the latest."""

    def __init__(self, timing: Timing = TIMING) -> None:
        self._timing = timing
        self.up_at = 0.0
        """When Ray was up, in seconds since 1970; 0: not yet."""
        self._pool: WorkerPool | None = None
        # Guards check-then-act on `_pool`: two stages may need it at once.
        self._making = threading.Lock()

    @property
    def workers_ready_at(self) -> float:
        """When the last of the first workers had started, in seconds since 1970; 0: not yet."""
        return self._pool.workers_ready_at if self._pool else 0.0

    @abstractmethod
    def join(self, config: TrainConfig, *, nodes_wait_s: float = 0) -> None:
        """Join the cluster, whose nodes are given `nodes_wait_s` to be there.

        Raises ResourceError if it can never give what the workers need.
        """

    @abstractmethod
    def start_workers_early(self, config: TrainConfig) -> None:
        """Start the workers during the preparation, if there is room for all."""

    @abstractmethod
    def wait_until_up(self) -> None:
        """Wait until Ray is up. Raises what kept it from starting."""

    @abstractmethod
    def expect_end(self) -> None:
        """From here on Ray's death does not end this process."""

    def pool_for_training(self, config: TrainConfig) -> WorkerPool:
        """The pool, of which a launcher starts the workers."""
        from train_core.cluster.pool import WorkerPool

        with self._making:
            self._pool = self._pool or WorkerPool(config, PRELOAD, self._timing.cluster)
            return self._pool

    def pool_for_scoring(self, config: TrainConfig) -> WorkerPool:
        """The workers of the training, or as many as there is room for."""
        pool = self.pool_for_training(config)
        pool.start_for_scoring(config)
        return pool

    def end_workers(self) -> None:
        """End the workers; another stage may start some again."""
        if self._pool:
            self._pool.end_workers()

    def end_for_good(self) -> None:
        """End the workers, and never start any again."""
        if self._pool:
            self._pool.end_for_good()

    def _start_ray(self, config: TrainConfig) -> None:
        from train_core.cluster.runtime import start_ray

        start_ray(config, runner_of(config).ray_settings(self._timing))
        self.up_at = time.time()


class ClusterRaySession(RaySession):
    """The Ray of the cluster whose job this process is."""

    def join(self, config: TrainConfig, *, nodes_wait_s: float = 0) -> None:
        """Join the cluster from the thread that calls: with it, Ray would end."""
        self._start_ray(config)
        check_resources(config, nodes_wait_s)

    def start_workers_early(self, config: TrainConfig) -> None:
        """Start the workers, if there is room for all."""
        from train_core.cluster.scaling import room_for

        if not config.trainable.uses_pool:
            return
        try:
            if room_for(config) >= config.num_workers:
                self.pool_for_training(config).start(config)
        except Exception as error:  # noqa: BLE001 (whatever Ray raises while its head is away)
            _log.debug("the workers are started with the training: %s", error)

    def wait_until_up(self) -> None:
        """It is up once the cluster was joined."""

    def expect_end(self) -> None:
        """Do nothing: no thread checks that the Ray of a cluster lives."""


class LocalRaySession(RaySession):
    """A Ray of this machine, which is started in the background.

    `start` runs a function on the main thread, and gives its end: a Ray that is started from
    another thread dies with it.
    """

    def __init__(
        self,
        config: TrainConfig,
        start: Callable[[Callable[[], None]], Future[None]],
        on_expected_end: Callable[[], None] = lambda: None,
        timing: Timing = TIMING,
    ) -> None:
        super().__init__(timing)
        self._config = config
        self._start = start
        self._on_expected_end = on_expected_end
        # Guards check-then-act on `_ray`.
        self._starting = threading.Lock()
        self._ray: Future[None] | None = None
        """The end of the newest try to start Ray."""

    def begin(self) -> None:
        """Start Ray, and then the workers, which import torch in the background.

        Raises ConfigError if Ray could not start.
        """
        from train_core.cluster.runtime import check_folders, load_ray

        check_folders()
        load_ray(self._config, runner_of(self._config).ray_settings(self._timing))
        with self._starting:
            self._ray = self._start(self._begin)

    def join(self, config: TrainConfig, *, nodes_wait_s: float = 0) -> None:
        """There is no cluster; what this machine has is among the first checks."""

    def start_workers_early(self, config: TrainConfig) -> None:
        """Do nothing: they start with Ray."""

    def wait_until_up(self) -> None:
        """Wait until Ray is up; where the newest try failed, make another one."""
        with self._starting:
            if self._ray is None or (self._ray.done() and self._ray.exception()):
                self._ray = self._start(self._begin)
            ray = self._ray
        try:
            ray.result()
        except Exception as error:
            raise rebuild(describe("prepare", error)) from error

    def expect_end(self) -> None:
        """From here on Ray's death does not end this process."""
        self._on_expected_end()

    def _begin(self) -> None:
        from train_core.driver.attempts.pool_launcher import is_fixed

        self._start_ray(self._config)
        if not self._config.trainable.uses_pool:
            return
        if is_fixed(self._config) and not self._pool:
            decided = with_gpus(self._config)
            if fits_here(decided):
                self.pool_for_training(decided).start(decided)
