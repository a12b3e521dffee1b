"""A holder elsewhere whose storage was away for a while, for it and for the newcomer."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.storage.coordination.test_lease import lease_elsewhere
from train_core.errors import RunBusyError
from train_core.storage.coordination import lease
from train_core.storage.coordination.timing import Timing
from train_core.storage.objects.store import Store
from train_core.storage.run_folder import RunFolder

TIMING = Timing(standstill_s=1.0)


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
