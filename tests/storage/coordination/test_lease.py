from __future__ import annotations

import subprocess
import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.commands import said_by, talking
from tests.marks import slow
from tests.storage.samples import commit, manifest, save
from tests.waiting import wait_for
from train_core.errors import FencedError, RunBusyError, StorageError
from train_core.storage.coordination import lease
from train_core.storage.coordination.fence_list import Fence, read_fence_list
from train_core.storage.coordination.holder import Holder, Life
from train_core.storage.coordination.lease import Lease, LeaseHeartbeat
from train_core.storage.objects.retry_policy import DEFAULT
from train_core.storage.objects.store import Store
from train_core.storage.records.names import CheckpointName
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt, next_attempt
from train_core.timing import TIMING, CoordinationTiming

DRIVER = """
import sys
from train_core.errors import RunBusyError
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import begin_attempt
try:
    lease = begin_attempt(RunFolder.at(sys.argv[1]))
except RunBusyError:
    print("busy", flush=True)
else:
    print(lease.attempt, flush=True)
    sys.stdin.readline()
    lease.release()
"""


@pytest.fixture
def folder(storage_url: str) -> RunFolder:
    return RunFolder(storage_url, "run")


@pytest.fixture
def local_folder(tmp_path: Path) -> RunFolder:
    return RunFolder(str(tmp_path), "run")


def driver_of(folder: RunFolder) -> AbstractContextManager[subprocess.Popen[str]]:
    """Another process that drives the run, or tries to."""
    return talking(DRIVER, folder.url)


def holder_elsewhere() -> Holder:
    return Holder(
        host="far-away", machine="another", pid=4711, process_started=0.0, token="of-another"
    )


def lease_elsewhere(folder: RunFolder) -> Lease:
    """The run is held by attempt 1, on another machine."""
    folder.store.create("lease/0001.json", holder_elsewhere().model_dump_json().encode())
    return Lease(folder.store, folder.name, 1)


class SlowToScan(RunFolder):
    """Has so many manifests that its holder sends two heartbeats before they are read."""

    def scan(self) -> tuple[list[Commit], dict[CheckpointName, str]]:
        begin = lease._heartbeat(self.store, 1).counter
        wait_for(lambda: lease._heartbeat(self.store, 1).counter >= begin + 2, 30)
        return super().scan()


def test_heartbeats_are_sent_while_an_attempt_begins(local_folder: RunFolder) -> None:
    begin_attempt(SlowToScan(local_folder.storage, "run"))


class ImpatientStore(Store):
    """Takes a heartbeat only from who would not wait for long."""

    def write(self, key: str, data: bytes, *, durable: bool = False) -> None:
        assert (
            "-beat" not in key or self.retry_policy.budget_s <= TIMING.coordination.standstill_s / 2
        )
        super().write(key, data, durable=durable)


def test_a_heartbeat_does_not_wait_for_a_storage_that_is_away(tmp_path: Path) -> None:
    held = lease.acquire(ImpatientStore(str(tmp_path)), "run")
    held.send_heartbeat()
    held.release()


class SlowStore(Store):
    """Answers a heartbeat later than its sender waits, and everything else in time."""

    def write(self, key: str, data: bytes, *, durable: bool = False) -> None:
        if "-beat" in key and self.retry_policy.budget_s < DEFAULT.budget_s:
            raise StorageError("no answer in time")
        super().write(key, data, durable=durable)


def test_an_attempt_begins_on_a_storage_that_is_too_slow_for_a_heartbeat(
    local_folder: RunFolder,
) -> None:
    local_folder.store = store = SlowStore(local_folder.url)
    held = begin_attempt(local_folder)
    next_attempt(local_folder, held)
    assert lease.newest_attempt(store) == 2
    assert lease.is_over(store, 1)
    assert not lease.is_over(store, 2)


class HoldsTheRelease(Store):
    """Does not answer who releases attempt 1 until it is told to."""

    goes_on = threading.Event()

    def write(self, key: str, data: bytes, *, durable: bool = False) -> None:
        if "0001-beat" in key and LeaseHeartbeat.model_validate_json(data).released:
            assert self.goes_on.wait(60)
        super().write(key, data, durable=durable)


def test_heartbeats_of_a_further_attempt_are_sent_while_the_storage_is_slow(tmp_path: Path) -> None:
    store = HoldsTheRelease(str(tmp_path))
    held = lease.acquire(store, "run", timing=CoordinationTiming(heartbeat_s=0.05))
    releasing = threading.Thread(target=held.release_earlier)
    with lease.alive(held):
        held.advance()
        releasing.start()
        try:
            wait_for(lambda: lease._heartbeat(store, 2).counter, 30)
            assert not lease.is_over(store, 1)
        finally:
            store.goes_on.set()
            releasing.join()
    assert lease.is_over(store, 1)
    assert not lease.is_over(store, 2)


def test_the_first_attempt_is_number_one_and_free_runs_have_no_holder(folder: RunFolder) -> None:
    assert lease.newest_attempt(folder.store) == 0
    assert lease.holder_of(folder.store) is None
    held = begin_attempt(folder)
    assert held.attempt == lease.newest_attempt(folder.store) == 1
    assert lease.holder_of(folder.store) is not None
    held.release()
    assert lease.holder_of(folder.store) is None


@pytest.mark.promise("one-driver")
def test_a_second_driver_is_refused_within_seconds_and_the_holder_is_named(
    folder: RunFolder,
) -> None:
    with driver_of(folder) as driver:
        assert said_by(driver) == "1"
        begin = time.monotonic()
        with pytest.raises(RunBusyError, match=f"driven by process {driver.pid} on "):
            begin_attempt(folder)
        assert time.monotonic() - begin < TIMING.coordination.standstill_s
    assert lease.newest_attempt(folder.store) == 1


@pytest.mark.promise("one-driver")
def test_a_killed_driver_is_followed_at_once(folder: RunFolder) -> None:
    with driver_of(folder) as driver:
        assert said_by(driver) == "1"
        driver.kill()
        driver.wait()
        begin = time.monotonic()
        assert begin_attempt(folder).attempt == 2
        assert time.monotonic() - begin < TIMING.coordination.standstill_s


def test_a_killed_driver_that_nobody_waits_for_is_followed(local_folder: RunFolder) -> None:
    with driver_of(local_folder) as driver:
        assert said_by(driver) == "1"
        driver.kill()
        assert begin_attempt(local_folder).attempt == 2


def test_a_driver_that_ends_in_time_is_waited_for(local_folder: RunFolder) -> None:
    with driver_of(local_folder) as driver:
        assert said_by(driver) == "1"
        ending = threading.Timer(TIMING.coordination.dying_grace_s / 6, driver.kill)
        ending.start()
        assert begin_attempt(local_folder).attempt == 2
        ending.join()


def test_a_released_run_is_free_at_once(folder: RunFolder) -> None:
    with driver_of(folder) as driver:
        assert said_by(driver) == "1"
        driver.communicate("end\n", timeout=30)
    begin = time.monotonic()
    assert begin_attempt(folder).attempt == 2
    assert time.monotonic() - begin < TIMING.coordination.standstill_s


def test_a_process_with_the_number_of_a_dead_one_is_not_the_holder(local_folder: RunFolder) -> None:
    held = begin_attempt(local_folder)
    holder = lease.holder_of(held.store)
    assert holder is not None
    assert holder.life is Life.ALIVE
    another = {"process_started": 1.0, "process_start": f"1{holder.process_start}"}
    assert holder.model_copy(update=another).life is Life.DEAD


def test_of_drivers_that_start_together_one_gets_the_run(local_folder: RunFolder) -> None:
    with (
        driver_of(local_folder) as one,
        driver_of(local_folder) as two,
        driver_of(local_folder) as three,
    ):
        assert sorted(said_by(driver) for driver in (one, two, three)) == ["1", "busy", "busy"]


def test_one_process_that_asks_twice_gets_the_run_once(local_folder: RunFolder) -> None:
    begin_attempt(local_folder)
    with pytest.raises(RunBusyError):
        begin_attempt(local_folder)


def test_a_holder_elsewhere_whose_heartbeat_moves_is_left_alone(local_folder: RunFolder) -> None:
    held = lease_elsewhere(local_folder)
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(0.1):
            held.send_heartbeat()

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        with pytest.raises(RunBusyError, match="driven by process 4711 on far-away"):
            begin_attempt(local_folder)
    finally:
        stop.set()
        beating.join()


@pytest.mark.promise("one-driver")
@pytest.mark.parametrize("beats", [slow(0), 5])
def test_a_holder_elsewhere_is_followed_once_its_heartbeat_stood_still(
    local_folder: RunFolder, beats: int
) -> None:
    held = lease_elsewhere(local_folder)
    for _ in range(beats):
        held.send_heartbeat()
    begin = time.monotonic()
    assert begin_attempt(local_folder).attempt == 2
    assert (
        TIMING.coordination.standstill_s
        <= time.monotonic() - begin
        < TIMING.coordination.standstill_s + 3
    )


def test_a_holder_elsewhere_that_released_is_followed_at_once(folder: RunFolder) -> None:
    lease_elsewhere(folder).release()
    begin = time.monotonic()
    assert begin_attempt(folder).attempt == 2
    assert time.monotonic() - begin < TIMING.coordination.standstill_s


def test_a_replaced_attempt_cannot_commit(folder: RunFolder) -> None:
    begin_attempt(folder).release()
    save(folder, step=5, attempt=1)
    begin_attempt(folder)
    with pytest.raises(FencedError, match="attempt 1 was replaced by attempt 2"):
        RunWriter(folder, 1).commit(manifest(5, 1))
    assert folder.checkpoints() == []


def test_a_replaced_attempt_cannot_delete(folder: RunFolder) -> None:
    begin_attempt(folder).release()
    name = commit(folder, step=5, attempt=1)
    begin_attempt(folder)
    with pytest.raises(FencedError, match="attempt 1 was replaced by attempt 2"):
        RunWriter(folder, 1).delete_checkpoint(name)
    assert [found.name for found in folder.checkpoints()] == [name]


@pytest.mark.promise("fencing")
def test_a_commit_that_slips_in_after_the_fence_list_does_not_count(folder: RunFolder) -> None:
    begin_attempt(folder).release()
    before = commit(folder, step=5, attempt=1)
    late = save(folder, step=6, attempt=1)
    lease.check(folder.store, 1)  # attempt 1 may still commit, and then is held up
    begin_attempt(folder).release()
    folder.store.create(f"checkpoints/{late}/manifest.json", manifest(6, 1).to_json())
    assert [found.name for found in folder.checkpoints()] == [before]
    after = commit(folder, step=6, attempt=2)
    begin_attempt(folder)
    assert [found.name for found in folder.checkpoints()] == [before, after]


def test_the_newest_fence_list_counts_also_when_a_later_attempt_died_before_its_own(
    folder: RunFolder,
) -> None:
    begin_attempt(folder).release()
    kept = commit(folder, step=5, attempt=1)
    begin_attempt(folder).release()
    lease.acquire(folder.store, "run").release()  # attempt 3 ends before its fence list
    assert read_fence_list(folder.store) == Fence(2, frozenset({str(kept)}))
    late = CheckpointName(6, 1)
    folder.store.create(f"checkpoints/{late}/manifest.json", manifest(6, 1).to_json())
    begin_attempt(folder)
    assert [found.name for found in folder.checkpoints()] == [kept]


def test_an_attempt_is_over_when_it_was_released_or_its_process_is_dead(
    local_folder: RunFolder,
) -> None:
    store = local_folder.store
    with driver_of(local_folder) as driver:
        assert said_by(driver) == "1"
        assert not lease.is_over(store, 1)
        driver.kill()
        driver.wait()
    assert lease.is_over(store, 1)
    held = begin_attempt(local_folder)
    assert not lease.is_over(store, 2)
    held.release()
    assert lease.is_over(store, 2)


def test_an_attempt_elsewhere_is_over_when_another_follows(local_folder: RunFolder) -> None:
    held = lease_elsewhere(local_folder)
    held.send_heartbeat()
    assert not lease.is_over(local_folder.store, 1)
    local_folder.store.create("lease/0002.json", holder_elsewhere().model_dump_json().encode())
    assert lease.is_over(local_folder.store, 1)
    assert not lease.is_over(local_folder.store, 2)


def test_an_attempt_that_nobody_made_is_over(local_folder: RunFolder) -> None:
    assert lease.is_over(local_folder.store, 7)


def test_heartbeats_are_sent_while_a_block_runs_and_the_run_is_free_after_it(
    local_folder: RunFolder,
) -> None:
    held = begin_attempt(local_folder, timing=CoordinationTiming(heartbeat_s=0.01))
    has_beaten = threading.Event()

    class Listening(Store):
        def write(self, key: str, data: bytes, *, durable: bool = False) -> None:
            super().write(key, data, durable=durable)
            has_beaten.set()

    def work() -> None:
        with lease.alive_until_released(held):
            assert has_beaten.wait(30)
            assert lease.holder_of(local_folder.store) is not None
            raise InterruptedError

    held.store = Listening(local_folder.url)
    with pytest.raises(InterruptedError):
        work()
    assert lease.holder_of(local_folder.store) is None


def test_a_heartbeat_that_is_not_written_does_not_end_the_next_ones_and_is_logged_once(
    local_folder: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    held = begin_attempt(local_folder, timing=CoordinationTiming(heartbeat_s=0.01))
    second = threading.Event()

    class FailsTwice(Store):
        failures = 0

        def write(self, key: str, data: bytes, *, durable: bool = False) -> None:
            if self.failures < 2:
                type(self).failures += 1
                raise StorageError("503")
            super().write(key, data, durable=durable)
            second.set()

    held.store = FailsTwice(local_folder.url)
    with lease.alive_until_released(held):
        assert second.wait(30)
    assert caplog.text.count("the heartbeat was not written") == 1


def test_a_holder_that_goes_on_to_its_next_attempt_never_releases_the_run(
    folder: RunFolder,
) -> None:
    held = begin_attempt(folder)
    committed = commit(folder, 1, attempt=1)
    next_attempt(folder, held)
    assert held.attempt == lease.newest_attempt(folder.store) == 2
    assert lease.holder_of(folder.store) == lease._holder(folder.store, 2)
    # The attempt before is over, though its process lives; what it committed counts.
    assert lease.is_over(folder.store, 1)
    assert not lease.is_over(folder.store, 2)
    late = save(folder, 2, attempt=1)
    folder.store.create(f"checkpoints/{late}/manifest.json", manifest(2, 1).to_json())
    assert [one.name for one in folder.checkpoints()] == [committed]
    with driver_of(folder) as driver:
        assert said_by(driver) == "busy"
    held.release()
    assert lease.holder_of(folder.store) is None


def test_a_holder_that_was_replaced_does_not_go_on(folder: RunFolder) -> None:
    held = begin_attempt(folder)
    folder.store.create("lease/0002.json", holder_elsewhere().model_dump_json().encode())
    with pytest.raises(FencedError):
        held.advance()
    assert held.attempt == 1
