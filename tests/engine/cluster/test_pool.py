"""Workers of a real Ray: shards that queue, processes that stay, and what ends them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import ray

from train_core import TrainConfig
from train_core.engine.cluster.pool import WorkerPool
from train_core.engine.cluster.pool_settings import POOL_SETTINGS
from train_core.engine.cluster.runtime import start_ray
from train_core.errors import UserCodeError

pytestmark = pytest.mark.timeout(180)
CONFIG = TrainConfig(num_workers=2, cpus_per_worker=0.5, gpus_per_worker=0)
HERE = "tests.engine.cluster.functions"


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """Ray starts processes while a test runs; they end with the module."""


@pytest.fixture(scope="module")
def pool() -> Iterator[WorkerPool]:
    start_ray(CONFIG, POOL_SETTINGS)
    found = WorkerPool(CONFIG)
    yield found
    found.end()
    ray.shutdown()


def test_shards_queue_for_the_workers_and_come_back_in_their_order(pool: WorkerPool) -> None:
    pool.start(CONFIG)
    found = pool.map(f"{HERE}:double", [(number,) for number in range(7)])
    assert [result for result, _ in found] == [0, 2, 4, 6, 8, 10, 12]
    assert len({pid for _, pid in found}) == 2


def test_workers_stay_for_the_next_stage(pool: WorkerPool) -> None:
    pids = []
    for _ in range(2):
        pool.start(CONFIG)
        pids.append({pid for _, pid in pool.map(f"{HERE}:double", [(1,), (2,)])})
    assert pids[0] == pids[1]


def test_an_exit_of_the_users_is_his_bug_and_no_death(pool: WorkerPool) -> None:
    pool.start(CONFIG)
    with pytest.raises(UserCodeError, match=r"shard 0: SystemExit: enough"):
        pool.map(f"{HERE}:quit_measuring", [(0,)])


@pytest.mark.promise("worker-dies")
@pytest.mark.slow
def test_a_worker_that_dies_fails_the_stage_and_the_next_try_has_new_ones(
    pool: WorkerPool, tmp_path: Path
) -> None:
    pool.start(CONFIG)
    shards = [(number, str(tmp_path / "died")) for number in range(3)]
    with pytest.raises(ConnectionError, match=r"evaluates or infers \(shard 1\) died"):
        pool.map(f"{HERE}:die_once", shards)
    assert not pool.has_workers_for(CONFIG)
    pool.start(CONFIG)
    assert pool.map(f"{HERE}:die_once", shards) == [0, 1, 2]


def test_a_bug_that_is_told_after_its_consequence_is_the_cause(pool: WorkerPool) -> None:
    pool.start(CONFIG)
    with pytest.raises(UserCodeError, match="KeyError"):
        pool.run_ranks("g", f"{HERE}:fail_after_the_others", lambda own: (own,), check=int)
    pool.close()


@pytest.mark.slow
def test_a_worker_that_is_stopped_while_it_scores_is_noticed_and_replaced(
    pool: WorkerPool, tmp_path: Path
) -> None:
    # Half a minute is the least time that a silent worker is given.
    impatient = CONFIG.model_copy(update={"hang_timeout_s": 5})
    pool.start(impatient)
    shards = [(number, str(tmp_path / "stopped")) for number in range(3)]
    with pytest.raises(ConnectionError, match=r"\(shard 1\) died: SilentWorkerError"):
        pool.map(f"{HERE}:stop_once", shards)
    pool.start(impatient)
    assert pool.map(f"{HERE}:stop_once", shards) == [0, 1, 2]


def test_one_that_has_ended_starts_no_worker() -> None:
    pool = WorkerPool(CONFIG)
    pool.end()
    with pytest.raises(ConnectionError, match="the driver ends"):
        pool.start(CONFIG)
    pool.replace()
    assert not pool.has_workers_for(CONFIG)
