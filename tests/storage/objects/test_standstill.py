"""A holder elsewhere whose storage was away for a while, for it and for who looks at its heart."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from tests.storage.coordination.test_lease import lease_elsewhere
from train_core.errors import RunBusyError
from train_core.storage.coordination import lease
from train_core.storage.objects.store import Store
from train_core.storage.run_folder import RunFolder


class AwayForAWhile(Store):
    """Answers one look at a heartbeat only after longer than a heart may stand still."""

    slow = 0
    looks = 0
    is_looked_at_again = threading.Event()

    def read(self, key: str) -> bytes:
        if not key.endswith("-beat.json"):
            return super().read(key)
        kind = type(self)
        kind.looks += 1
        if kind.looks == kind.slow:
            time.sleep(2 * lease.STANDSTILL_S)
        found = super().read(key)
        if kind.looks > kind.slow:
            kind.is_looked_at_again.set()
        return found


@pytest.mark.parametrize("slow", [1, 2])
def test_a_holder_elsewhere_is_left_alone_whose_storage_was_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slow: int
) -> None:
    monkeypatch.setattr(lease, "STANDSTILL_S", 1.0)
    monkeypatch.setattr(AwayForAWhile, "slow", slow)
    monkeypatch.setattr(AwayForAWhile, "looks", 0)
    monkeypatch.setattr(AwayForAWhile, "is_looked_at_again", threading.Event())
    folder = RunFolder(str(tmp_path), "run")
    held = lease_elsewhere(folder)
    held.send_heartbeat()

    def beat() -> None:
        # What kept the look kept the beats as well.
        if AwayForAWhile.is_looked_at_again.wait(30):
            held.send_heartbeat()

    beating = threading.Thread(target=beat)
    beating.start()
    try:
        with pytest.raises(RunBusyError):
            lease.acquire(AwayForAWhile(folder.url), "run")
    finally:
        beating.join()
