"""Workers of a real Ray: shards that queue, processes that stay, and what ends them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from ray.util.placement_group import placement_group, placement_group_table, remove_placement_group

from tests.waiting import wait_for
from train_core import TrainConfig
from train_core.cluster.outcomes import DiedAtStartError, Outcome, values
from train_core.cluster.pool import WorkerPool
from train_core.config import available_cpus
from train_core.driver.ray_session import ClusterRaySession
from train_core.errors import UserCodeError
from train_core.timing import TIMING, ClusterTiming

pytestmark = pytest.mark.timeout(180)
CONFIG = TrainConfig(num_workers=2, cpus_per_worker=0.5, gpus_per_worker=0)
HERE = "tests.cluster.functions"


@pytest.fixture(scope="module")
def pool(process_ray: None) -> Iterator[WorkerPool]:
    # What takes seconds to import keeps no rank of a test from failing right after another.
    found = WorkerPool(CONFIG, [HERE])
    yield found
    found.end_for_good()


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


def test_a_worker_that_gets_sigterm_ends_after_its_call_and_reports_no_bug(
    pool: WorkerPool,
) -> None:
    pool.start(CONFIG)
    ((pid, is_main_thread),) = pool.map(f"{HERE}:get_sigterm", [(0,)])
    assert not is_main_thread
    with suppress(psutil.NoSuchProcess):
        psutil.Process(pid).wait(60)
    pool.end_workers()


def test_an_exit_of_the_users_is_his_bug_and_no_death(pool: WorkerPool) -> None:
    pool.start(CONFIG)
    with pytest.raises(UserCodeError, match=r"shard 0: it called sys.exit\('enough'\)"):
        pool.map(f"{HERE}:quit_measuring", [(0,)])


@pytest.mark.promise("worker-dies")
@pytest.mark.slow
def test_a_worker_that_dies_fails_the_stage_and_the_next_try_has_new_ones(
    pool: WorkerPool, tmp_path: Path
) -> None:
    pool.start(CONFIG)
    shards = [(number, str(tmp_path / "died")) for number in range(3)]
    with pytest.raises(ConnectionError, match=r"evaluates or infers \(call 2 of 3\) died"):
        pool.map(f"{HERE}:die_once", shards)
    assert not pool.is_placed(CONFIG)
    pool.start(CONFIG)
    assert pool.map(f"{HERE}:die_once", shards) == [0, 1, 2]


def test_a_bug_that_is_told_after_its_consequence_is_the_cause(pool: WorkerPool) -> None:
    pool.start(CONFIG)
    outcomes = pool.run_ranks(f"{HERE}:fail_after_the_others", lambda rank: (rank,), check=int)
    with pytest.raises(UserCodeError, match="KeyError"):
        values({f"rank {rank}": one for rank, one in enumerate(outcomes.values())}, "")
    pool.end_workers()


@pytest.mark.slow
def test_a_worker_that_is_stopped_while_it_scores_is_noticed_and_replaced(
    pool: WorkerPool, tmp_path: Path
) -> None:
    # Half a minute is the least time that a silent worker is given.
    impatient = CONFIG.model_copy(update={"hang_timeout_s": 5})
    pool.start(impatient)
    shards = [(number, str(tmp_path / "stopped")) for number in range(3)]
    with pytest.raises(ConnectionError, match=r"\(call 2 of 3\) died: SilentWorkerError"):
        pool.map(f"{HERE}:stop_once", shards)
    pool.start(impatient)
    assert pool.map(f"{HERE}:stop_once", shards) == [0, 1, 2]


def test_one_that_has_ended_starts_no_worker() -> None:
    pool = WorkerPool(CONFIG)
    pool.end_for_good()
    with pytest.raises(ConnectionError, match="the driver ends"):
        pool.start(CONFIG)
    pool.replace()
    assert not pool.is_placed(CONFIG)


def num_groups() -> int:
    """How many placement groups reserve something, or are waiting to."""
    return sum(group["state"] != "REMOVED" for group in placement_group_table().values())


@contextmanager
def no_free_cpu() -> Iterator[Callable[[], None]]:
    """All CPUs are reserved by somebody else until the function that it gives is called."""
    others = placement_group([{"CPU": available_cpus()}])
    assert others.wait(60)
    try:
        yield lambda: remove_placement_group(others)
    finally:
        remove_placement_group(others)


class TwoAtOnce(WorkerPool):
    """Two threads that start workers meet between the look at those that are there and the start.

    If only one of them can come that far at a time, it goes on alone after a second.
    """

    def __init__(self, config: TrainConfig) -> None:
        super().__init__(config)
        self._both = threading.Barrier(2)

    def end_workers(self) -> None:
        with suppress(threading.BrokenBarrierError):
            self._both.wait(1)
        super().end_workers()


@pytest.fixture
def own_pool(pool: WorkerPool) -> Iterator[Callable[[WorkerPool], WorkerPool]]:
    """Ends a pool of the test's own, on the same Ray; the shared one has no workers meanwhile."""
    pool.end_workers()
    pools: list[WorkerPool] = []

    def add(own: WorkerPool) -> WorkerPool:
        pools.append(own)
        return own

    yield add
    for own in pools:
        own.end_for_good()


OwnPool = Callable[[WorkerPool], WorkerPool]


def test_two_stages_that_start_at_once_share_the_workers(own_pool: OwnPool) -> None:
    pool = own_pool(TwoAtOnce(CONFIG))

    def score() -> Sequence[tuple[int, int]]:
        pool.start(CONFIG)
        return pool.map(f"{HERE}:double", [(number,) for number in range(4)])

    with ThreadPoolExecutor(2) as threads:
        stages = [threads.submit(score) for _ in range(2)]
        found = [stage.result() for stage in stages]
    assert [[result for result, _ in of_stage] for of_stage in found] == [[0, 2, 4, 6]] * 2
    assert len({pid for of_stage in found for _, pid in of_stage}) == 2
    assert num_groups() == 1


def test_a_stage_keeps_the_workers_for_which_another_one_waits(own_pool: OwnPool) -> None:
    pool, session = own_pool(WorkerPool(CONFIG)), ClusterRaySession()
    session._pool = pool
    with no_free_cpu() as free, ThreadPoolExecutor(1) as thread:
        pool.start(CONFIG)
        other = thread.submit(pool.map, f"{HERE}:double", [(1,), (2,)])
        while not pool._calling.locked():
            assert not other.done()
        assert session.pool_for_scoring(CONFIG) is pool
        free()
        found = other.result() + pool.map(f"{HERE}:double", [(3,), (4,)])
    assert [result for result, _ in found] == [2, 4, 6, 8]
    assert len({pid for _, pid in found}) == 2


def test_a_stage_keeps_workers_that_may_soon_be_placed(own_pool: OwnPool) -> None:
    timing = ClusterTiming(placed_s=0.01, settle_s=60)
    pool, session = own_pool(WorkerPool(CONFIG, timing=timing)), ClusterRaySession()
    session._pool = pool
    with no_free_cpu() as free, ThreadPoolExecutor(1) as thread:
        pool.start(CONFIG)
        started = pool._slots
        found = thread.submit(session.pool_for_scoring, CONFIG)
        free()
        assert found.result() is pool
    assert pool._slots is started


def with_a_spare_that_prepares_itself(pool: WorkerPool, mark: Path) -> list[int]:
    """The processes of both workers, of which the second is killed, and that of the spare.

    The spare is ready when there is a file of the name `mark`.
    """
    pool.start(CONFIG)
    pids = returned(pool.run_ranks(f"{HERE}:pid", lambda _: (), check=int))
    assert pool._slots
    pool._slots.start_spare(0, f"{HERE}:note_pid_and_wait", (str(mark),))
    wait_for(Path(f"{mark}.pid").exists, 60)
    psutil.Process(pids[1]).kill()
    pool.replace({1})
    return [*pids, int(Path(f"{mark}.pid").read_text())]


def returned(outcomes: dict[int, Outcome]) -> list[int]:
    return values({str(slot): one for slot, one in outcomes.items()}, "")


@pytest.mark.slow
def test_a_spare_that_prepares_itself_is_waited_for_before_ranks_look_for_each_other(
    own_pool: OwnPool, tmp_path: Path
) -> None:
    pool, mark = own_pool(WorkerPool(CONFIG, [HERE])), tmp_path / "ready"
    first, _, spare = with_a_spare_that_prepares_itself(pool, mark)
    began, seconds = tmp_path / "began", []

    def check() -> None:
        assert not began.exists()
        seconds.append(1)
        if len(seconds) == 3:
            mark.touch()

    outcomes = pool.run_ranks(f"{HERE}:touch", lambda _: (str(began),), check=check)
    assert len(seconds) >= 3
    assert returned(outcomes) == [first, spare]


@pytest.mark.slow
def test_a_spare_that_does_not_come_to_its_end_is_replaced_and_nobody_else(
    own_pool: OwnPool, tmp_path: Path
) -> None:
    pool = own_pool(WorkerPool(CONFIG, [HERE]))
    first, second, spare = with_a_spare_that_prepares_itself(pool, tmp_path / "never")
    pool.timing = replace(pool.timing, start_s=2)
    with pytest.raises(DiedAtStartError, match="have not started in 2 s") as raised:
        pool.run_ranks(f"{HERE}:pid", lambda _: (), check=int)
    pool.timing = TIMING.cluster
    pool.replace(raised.value.slots)
    found = returned(pool.run_ranks(f"{HERE}:pid", lambda _: (), check=int))
    assert found[0] == first
    assert found[1] not in (second, spare)


def test_no_process_of_a_dashboard_runs(process_ray: None) -> None:
    titles = []
    for one in psutil.Process().children(recursive=True):
        # One that has just ended has none.
        with suppress(psutil.NoSuchProcess):
            titles.append(" ".join(one.cmdline()))
    assert any("gcs_server" in title for title in titles)
    assert not any("dashboard.py" in title for title in titles)
