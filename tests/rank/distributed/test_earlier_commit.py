"""What the ranks of an attempt learn of earlier ones from the driver's store."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.rank import alone
from train_core import TrainConfig
from train_core.errors import AttemptLostError, StorageError
from train_core.rank.distributed.earlier_commit import post_earlier, wait_for_earlier
from train_core.rank.distributed.rendezvous import LOOPBACK, RendezvousStore
from train_core.rank.distributed.stop_requests import LOST
from train_core.storage.run_folder import Commit, RunFolder

GROUP = "run/2"


@pytest.fixture
def store() -> RendezvousStore:
    return RendezvousStore(LOOPBACK)


def told(store: RendezvousStore) -> Commit | None:
    return wait_for_earlier(store.membership(GROUP, 0, 2, 0))


def test_a_commit_is_told_as_it_is_read_from_the_storage(
    store: RendezvousStore, tmp_path: Path
) -> None:
    asked = TrainConfig(workload="tests.rank.tiny:Tiny", max_steps=2, batch_size=32)
    folder = RunFolder(str(tmp_path), "run")
    alone.run(folder, **asked.model_dump())
    newest = folder.newest()
    assert newest is not None
    earlier: Future[Commit | None] = Future()
    post_earlier(store, GROUP, earlier)
    earlier.set_result(newest)
    assert told(store) == newest


def test_no_commit_is_told(store: RendezvousStore) -> None:
    earlier: Future[Commit | None] = Future()
    earlier.set_result(None)
    post_earlier(store, GROUP, earlier)
    assert told(store) is None


def test_ranks_that_wait_are_told_why_nothing_is_known(store: RendezvousStore) -> None:
    earlier: Future[Commit | None] = Future()
    post_earlier(store, GROUP, earlier)
    earlier.set_exception(StorageError("no route to the storage"))
    with pytest.raises(AttemptLostError, match="no route to the storage"):
        told(store)


def test_ranks_that_wait_are_told_that_another_one_died(store: RendezvousStore) -> None:
    post_earlier(store, GROUP, Future())
    store.post(GROUP, LOST, "rank 1 died")
    with pytest.raises(AttemptLostError, match="rank 1 died"):
        told(store)


def test_what_is_known_too_late_is_told_to_nobody(store: RendezvousStore) -> None:
    earlier: Future[Commit | None] = Future()
    post_earlier(store, GROUP, earlier)
    store.close()
    earlier.set_result(None)
