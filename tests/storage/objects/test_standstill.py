"""A holder elsewhere whose storage was away for a while, for it and for the newcomer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.storage.coordination.test_lease import holder_elsewhere, lease_elsewhere
from tests.tracking.run_builder import RunBuilder
from train_core.client.runs import delete_run, prune_run
from train_core.errors import RunBusyError, StorageError
from train_core.storage.coordination import lease
from train_core.storage.objects.store import Store
from train_core.storage.run_folder import RunFolder
from train_core.timing import UPKEEP, CoordinationTiming
from train_core.tracking.delivery.catch_up import catch_up

TIMING = CoordinationTiming(standstill_s=1.0)


@pytest.fixture
def run(tmp_path: Path) -> RunBuilder:
    return RunBuilder(RunFolder(str(tmp_path), "run"))


class AwayForAWhile(Store):
    """Answers one read of a heartbeat only after longer than it may stand still."""

    slow = 0
    reads = 0
    is_read_again = threading.Event()

    def read(self, key: str, max_bytes: int | None = None) -> bytes:
        if not key.endswith("-beat.json"):
            return super().read(key, max_bytes)
        kind = type(self)
        kind.reads += 1
        if kind.reads == kind.slow:
            time.sleep(2 * TIMING.standstill_s)
        found = super().read(key, max_bytes)
        if kind.reads > kind.slow:
            kind.is_read_again.set()
        return found


@pytest.mark.parametrize("slow", [1, 2])
def test_a_holder_elsewhere_is_left_alone_whose_storage_was_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: int
) -> None:
    monkeypatch.setattr(AwayForAWhile, "slow", slow)
    monkeypatch.setattr(AwayForAWhile, "reads", 0)
    monkeypatch.setattr(AwayForAWhile, "is_read_again", threading.Event())
    folder = RunFolder(str(tmp_path), "run")
    held = lease_elsewhere(folder)
    held.send_heartbeat()

    def send_heartbeat() -> None:
        # What delayed the read delayed the heartbeats as well.
        if AwayForAWhile.is_read_again.wait(30):
            held.send_heartbeat()

    sending = threading.Thread(target=send_heartbeat)
    sending.start()
    try:
        with pytest.raises(RunBusyError):
            lease.acquire(AwayForAWhile(folder.url), "run", timing=TIMING)
    finally:
        sending.join()


class TakesNoWrites(Store):
    """A storage that answers reads while `away` is set, and lets every write wait or fail."""

    away = threading.Event()
    probed = threading.Event()

    def write(self, key: str, data: bytes, *, durable: bool = False) -> None:
        if self.away.is_set():
            if key.endswith("-beat.json"):
                raise StorageError("no answer in time")
            self.probed.set()
            deadline = time.monotonic() + 30
            while self.away.is_set() and time.monotonic() < deadline:
                time.sleep(0.02)
        super().write(key, data, durable=durable)


def test_a_holder_is_left_alone_whose_storage_could_be_read_only(tmp_path: Path) -> None:
    """Both see the storage again: the holder's next heartbeat comes within its interval."""
    folder = RunFolder(str(tmp_path), "run")
    held = lease_elsewhere(folder)
    held.store = TakesNoWrites(folder.url)
    held.timing = CoordinationTiming(heartbeat_s=0.3)
    TakesNoWrites.probed.clear()
    with lease.alive(held):
        TakesNoWrites.away.set()

        def come_back() -> None:
            if TakesNoWrites.probed.wait(30):
                time.sleep(2 * TIMING.standstill_s)
            TakesNoWrites.away.clear()

        returning = threading.Thread(target=come_back)
        returning.start()
        try:
            with pytest.raises(RunBusyError):
                lease.acquire(TakesNoWrites(folder.url), "run", timing=TIMING)
        finally:
            TakesNoWrites.away.clear()
            returning.join()
    assert lease.newest_attempt(folder.store) == 1


def test_where_the_storage_answers_all_along_a_standstill_is_a_death(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    lease_elsewhere(folder).send_heartbeat()
    assert lease.acquire(folder.store, "run", timing=TIMING).attempt == 2
    # Of the writes that showed it, nothing is left.
    assert not [name for name in folder.store.names("lease") if "probe" in name]


class SilentFor(Store):
    """Fails every write of a heartbeat until `is_over`: the holder alone has lost its storage."""

    is_over = threading.Event()

    def write(self, key: str, data: bytes, *, durable: bool = False) -> None:
        if key.endswith("-beat.json") and not self.is_over.is_set():
            raise StorageError("no answer in time")
        super().write(key, data, durable=durable)


@pytest.mark.slow
@pytest.mark.parametrize(
    "command",
    [
        prune_run,
        delete_run,
        lambda folder: catch_up(folder, "sqlite:////nowhere/mlflow.db"),
    ],
    ids=["prune", "delete", "mirror"],
)
def test_what_can_wait_does_not_take_a_run_whose_holder_has_lost_the_storage(
    run: RunBuilder, command: Callable[[RunFolder], object]
) -> None:
    """The holder's storage is away for longer than a new attempt would wait."""
    run.commit(range(1, 5))
    run.lease.release()
    folder = run.folder
    folder.store.create("lease/0002.json", holder_elsewhere().model_dump_json().encode())
    held = lease.Lease(SilentFor(folder.url), "run", 2)
    SilentFor.is_over.clear()
    waiting = threading.Timer(13.0, SilentFor.is_over.set)
    with lease.alive(held):
        waiting.start()
        try:
            with pytest.raises(RunBusyError, match="far-away"):
                command(folder)
        finally:
            waiting.cancel()
    assert SilentFor.is_over.is_set()
    assert UPKEEP.standstill_s > lease.TIMING.coordination.standstill_s
    assert lease.newest_attempt(folder.store) == 2
    assert folder.exists()
