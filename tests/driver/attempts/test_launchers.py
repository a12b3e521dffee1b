"""What every launcher promises the supervisor, on a real Ray."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from tests.rank.alone import create, run
from tests.rank.digests import digest_of_training
from tests.ranks.ray_processes import workers_of
from tests.waiting import wait_for
from train_core import TrainConfig
from train_core.cluster.pool import WorkerPool
from train_core.config import LOCAL
from train_core.driver.attempts.pool_launcher import PoolLauncher
from train_core.driver.attempts.supervisor import Attempt, Launcher
from train_core.errors import StoppedError, UserCodeError
from train_core.policy.restarts import Asked, Ended
from train_core.rank.data.recorded_workload import with_monitor
from train_core.rank.distributed.stop_requests import StopRequests
from train_core.storage.run_folder import Commit, RunFolder
from train_core.timing import TIMING

pytestmark = [pytest.mark.usefixtures("process_ray"), pytest.mark.timeout(240)]
ASKED: dict[str, Any] = {
    "batch_size": 32,
    "num_shards": 4,
    "epochs": 2,
    "checkpoint_every_steps": 2,
    "checkpoint_backpressure": "wait",
    "cpus_per_worker": 0.5,
    "spares": 0,
}


@pytest.fixture(scope="module")
def pool(process_ray: None) -> Iterator[WorkerPool]:
    """Whose workers one test leaves to the next, and which starts spares at once."""
    timing = replace(TIMING.cluster, spare_after_s=0, spare_left_s=0)
    found = WorkerPool(TrainConfig(ray_address=LOCAL), timing=timing)
    yield found
    found.end_workers()
    _, alive = psutil.wait_procs(ranks(), timeout=10)
    assert not alive


@pytest.fixture
def launcher(pool: WorkerPool) -> Launcher:
    """The implementation of the protocol that is tested; another one becomes a parameter here."""
    return PoolLauncher(pool)


@pytest.fixture
def own_workers(pool: WorkerPool) -> Iterator[None]:
    """Ends the workers before and after a test whose module changes what a process computes."""
    pool.end_workers()
    yield
    pool.end_workers()


def attempt(
    folder: RunFolder,
    number: int = 1,
    check_stop: Callable[[], None] = lambda: None,
    **config: Any,
) -> Attempt:
    tiny = {"workload": "tests.rank.tiny:Tiny", "num_workers": 2}
    asked = with_monitor(TrainConfig(**tiny | ASKED | config))
    if not folder.exists():
        create(folder, asked)
    requests = StopRequests(lambda: None, poll_s=1)
    earlier: Future[Commit | None] = Future()
    earlier.set_result(folder.newest())
    return Attempt(folder, number, asked, requests, check_stop, earlier)


def ranks() -> list[psutil.Process]:
    """The processes that train."""
    return workers_of(psutil.Process())


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the training that one process did by itself."""
    folder = RunFolder(str(tmp_path_factory.mktemp("alone")), "alone")
    run(folder, **ASKED | {"eval_batch_size": TrainConfig().eval_batch_size})
    return digest_of_training(folder)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 3, 4])
def test_all_ranks_train_to_the_end(
    workers: int, launcher: Launcher, tmp_path: Path, undisturbed: str
) -> None:
    folder = RunFolder(str(tmp_path), "run")
    outcome = launcher.run(attempt(folder, num_workers=workers))
    assert (outcome.error, outcome.ended) == (None, Ended.IN_ORDER)
    assert digest_of_training(folder) == undisturbed


@pytest.mark.promise("elastic")
@pytest.mark.slow
def test_of_a_range_as_many_ranks_train_as_there_is_room_for(
    launcher: Launcher, tmp_path: Path, undisturbed: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = RunFolder(str(tmp_path), "run")
    cpus = ray.cluster_resources()["CPU"]
    asked = attempt(folder, num_workers=4, min_workers=1, cpus_per_worker=cpus / 2)
    with caplog.at_level("INFO", "train_core.driver"):
        outcome = launcher.run(asked)
    assert (outcome.error, outcome.ended) == (None, Ended.IN_ORDER)
    assert "training on 2 workers" in caplog.messages
    assert digest_of_training(folder) == undisturbed


@pytest.mark.promise("worker-dies")
def test_a_death_is_lost_and_the_others_live_on_for_the_next_attempt(
    launcher: Launcher, tmp_path: Path, undisturbed: str
) -> None:
    folder = RunFolder(str(tmp_path), "run")
    mortal = {"workload": "tests.rank.tiny:Mortal", "settings": {"scratch": str(tmp_path)}}
    seen: set[psutil.Process] = set()

    def look() -> None:
        seen.update(ranks())

    outcome = launcher.run(attempt(folder, 1, look, **mortal))
    assert outcome.ended is Ended.LOST
    assert isinstance(outcome.error, ConnectionError)
    assert "rank 1 died" in str(outcome.error)
    assert len(seen) == 2
    wait_for(lambda: psutil.wait_procs(seen, timeout=0)[0], 10)
    _, alive = psutil.wait_procs(seen, timeout=0)
    assert len(alive) == 1
    assert not launcher.run(attempt(folder, 2, **mortal)).error
    assert set(alive) < set(ranks())
    assert digest_of_training(folder) == undisturbed


@pytest.mark.slow
@pytest.mark.usefixtures("own_workers")
def test_a_spare_trains_with_what_the_users_module_has_set_for_its_thread(
    launcher: Launcher, tmp_path: Path
) -> None:
    digests = []
    for name in ("undisturbed", "killed"):
        folder, scratch = RunFolder(str(tmp_path), name), tmp_path / f"of-{name}"
        scratch.mkdir()
        if name == "undisturbed":
            Path(scratch, "died").touch()
        asked = {"workload": "tests.rank.flushing:Flushing", "settings": {"scratch": str(scratch)}}
        outcome = launcher.run(attempt(folder, spares=1, **asked))
        if name == "killed":
            assert outcome.ended is Ended.LOST
            outcome = launcher.run(attempt(folder, 2, **asked))
            assert len(list(scratch.glob("loaded-*"))) == 3
        assert not outcome.error
        digests.append(digest_of_training(folder))
    assert digests[0] == digests[1]


@pytest.mark.slow
@pytest.mark.promise("sigterm-of-a-worker")
def test_a_worker_that_gets_sigterm_hands_over_to_the_others(
    launcher: Launcher, tmp_path: Path
) -> None:
    # As by default: each checkpoint has a validation.
    asked: dict[str, Any] = {"checkpoint_every_steps": 0}
    alone = RunFolder(str(tmp_path / "alone"), "alone")
    run(alone, **ASKED | asked | {"eval_batch_size": TrainConfig().eval_batch_size})
    folder = RunFolder(str(tmp_path), "run")
    asked |= {"workload": "tests.rank.tiny:Terminated", "settings": {"scratch": str(tmp_path)}}
    seen: set[psutil.Process] = set()
    first = attempt(folder, 1, lambda: seen.update(ranks()), **asked)
    outcome = launcher.run(first)
    assert outcome.ended is Ended.LOST
    assert "rank 1 died: TerminatedWorkerError: it got SIGTERM" in str(outcome.error)
    assert outcome.has_survivors
    assert 5 <= outcome.kept_step < 10
    assert first.requests.asked is Asked.NOTHING
    gone, alive = psutil.wait_procs(seen, timeout=10)
    assert [one.pid for one in gone] == [int(Path(tmp_path, "got-sigterm-1").read_text())]
    assert not launcher.run(attempt(folder, 2, **asked)).error
    assert set(alive) < set(ranks())
    assert digest_of_training(folder) == digest_of_training(alone)


@pytest.mark.slow
@pytest.mark.promise("sigterm-of-a-worker")
@pytest.mark.parametrize(
    ("workload", "workers"), [("Terminated", 1), ("AllTerminated", 2)], ids=["alone", "all"]
)
def test_workers_that_all_get_sigterm_leave_after_a_checkpoint(
    launcher: Launcher, tmp_path: Path, undisturbed: str, workload: str, workers: int
) -> None:
    folder = RunFolder(str(tmp_path), "run")
    asked: dict[str, Any] = {"workload": f"tests.rank.tiny:{workload}", "num_workers": workers}
    asked["settings"] = {"scratch": str(tmp_path)}
    first = attempt(folder, 1, **asked)
    outcome = launcher.run(first)
    assert (outcome.error, outcome.ended) == (None, Ended.IN_ORDER)
    assert first.requests.asked is Asked.MOVE
    newest = folder.checkpoints()[-1].manifest
    assert newest.stopped_by == "request"
    assert 4 <= newest.step < 10
    for rank in range(workers):
        pid = int(Path(tmp_path, f"got-sigterm-{rank}").read_text())
        assert not psutil.pid_exists(pid) or psutil.Process(pid).wait(10) is None
    assert not launcher.run(attempt(folder, 2, **asked)).error
    assert digest_of_training(folder) == undisturbed


@pytest.mark.slow
def test_a_rank_that_dies_before_the_training_begins_is_lost(
    launcher: Launcher, tmp_path: Path, undisturbed: str
) -> None:
    folder = RunFolder(str(tmp_path), "run")
    killed: list[psutil.Process] = []

    def kill_one() -> None:
        if not killed and (found := ranks()):
            killed.append(found[0])
            found[0].kill()

    outcome = launcher.run(attempt(folder, 1, kill_one))
    assert killed
    assert outcome.ended is Ended.LOST
    assert not launcher.run(attempt(folder, 2)).error
    assert digest_of_training(folder) == undisturbed


@pytest.mark.promise("users-bug")
def test_a_users_bug_comes_with_its_traceback_and_leaves_no_rank_waiting(
    launcher: Launcher, tmp_path: Path
) -> None:
    outcome = launcher.run(
        attempt(RunFolder(str(tmp_path), "buggy"), workload="tests.rank.tiny:Buggy")
    )
    assert outcome.ended is not Ended.LOST
    assert isinstance(outcome.error, UserCodeError)
    assert "rank 1: KeyError" in outcome.error.summary
    assert "in loss" in outcome.error.traceback
    # Rank 0 waits in a collective for the one that failed.
    _, alive = psutil.wait_procs(ranks(), timeout=10)
    assert not alive
    assert not launcher.run(attempt(RunFolder(str(tmp_path), "next"), num_workers=1)).error


@pytest.mark.slow
def test_an_exit_of_the_users_is_his_bug(launcher: Launcher, tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    outcome = launcher.run(attempt(folder, workload="tests.rank.tiny:Quitting"))
    assert outcome.ended is not Ended.LOST
    assert isinstance(outcome.error, UserCodeError)
    assert "it called sys.exit('enough')" in outcome.error.summary


@pytest.mark.promise("stop-everywhere")
@pytest.mark.slow
def test_a_request_reaches_ranks_that_had_not_begun_when_it_came(
    launcher: Launcher, tmp_path: Path, undisturbed: str
) -> None:
    folder = RunFolder(str(tmp_path), "run")
    asked = attempt(folder, workload="tests.rank.tiny:Unhurried")
    asked.requests.ask_to_move("the test wants it")
    outcome = launcher.run(asked)
    assert (outcome.error, outcome.given_up_at) == (None, None)
    newest = folder.checkpoints()[-1].manifest
    assert newest.stopped_by == "request"
    assert newest.step < 10
    # What the next attempt is asked for is another thing.
    assert not launcher.run(attempt(folder, 2)).error
    assert digest_of_training(folder) == undisturbed


def test_one_that_is_asked_to_stop_before_its_ranks_train_does_not_begin(
    launcher: Launcher, tmp_path: Path
) -> None:
    folder = RunFolder(str(tmp_path), "run")

    def stop() -> None:
        raise StoppedError("run", 0)

    outcome = launcher.run(attempt(folder, 1, stop))
    assert outcome.ended is not Ended.LOST
    assert isinstance(outcome.error, StoppedError)
    assert folder.checkpoints() == []
