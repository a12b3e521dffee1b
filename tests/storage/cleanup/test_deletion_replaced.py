"""A process that deletes, stands still in the middle, and is replaced meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.storage.coordination.test_pins import any_folder, folder, held_up, kept, three
from tests.storage.samples import commit
from train_core.errors import FencedError
from train_core.storage.cleanup.delete_checkpoint import delete_unless_pinned
from train_core.storage.coordination import lease, pins
from train_core.storage.objects.store import Store
from train_core.storage.records.names import CheckpointName
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt

__all__ = ["any_folder", "folder"]  # fixtures


def give_free(folder: RunFolder) -> None:
    """As attempt 1 would: here it stands for a process that does not know of its end."""
    lease.Lease(folder.store, folder.name, attempt=1).release()


@contextmanager
def stopped_before_it_deletes(
    folder: RunFolder, name: CheckpointName, *, ignored: Collection[str] = ()
) -> Iterator[None]:
    """The block runs while attempt 1 stands still, all that it reads is read; then it goes on."""
    is_there, go_on = threading.Event(), threading.Event()

    class Stopping(Store):
        def delete(self, key: str) -> None:
            if key.endswith(f"{name}/manifest.json"):
                is_there.set()
                assert go_on.wait(60)
            super().delete(key)

    zombie = RunFolder(folder.storage, folder.name)
    zombie.store = Stopping(folder.url)
    with ThreadPoolExecutor(1) as thread:
        future = thread.submit(
            delete_unless_pinned, RunWriter(zombie, 1), str(name), ignored_pins=ignored
        )
        try:
            assert is_there.wait(60)
            yield
        finally:
            go_on.set()
        assert future.result()


def test_what_a_replaced_attempt_still_deletes_its_successor_does_not_count_on(
    any_folder: RunFolder,
) -> None:
    first, _, _ = three(any_folder)
    with stopped_before_it_deletes(any_folder, first):
        give_free(any_folder)
        taken = lease.acquire(any_folder.store, any_folder.name)
        # Until somebody has said what exists, the announcement counts.
        with pytest.raises(FileNotFoundError, match="is being deleted"):
            pins.pin(any_folder.store, first, "infer-1", "infer")
        taken.release()
        begin_attempt(any_folder)
        assert kept(any_folder) == [2, 3]
    assert kept(any_folder) == [2, 3]


def test_a_reader_does_not_keep_what_a_replaced_attempt_still_deletes(folder: RunFolder) -> None:
    first, _, _ = three(folder)

    def take_over() -> None:
        give_free(folder)
        begin_attempt(folder)
        assert kept(folder) == [2, 3]

    with stopped_before_it_deletes(folder, first):
        # Its pin is written before the successor looks, and it looks itself after that.
        reader = held_up(folder, take_over, is_before=False)
        with pytest.raises(FileNotFoundError, match="does not exist"):
            pins.pin(reader.store, first, "infer-1", "infer")


def test_a_pin_that_a_replaced_attempt_was_to_ignore_does_not_keep_its_checkpoint(
    folder: RunFolder,
) -> None:
    first, _, _ = three(folder)
    key = pins.pin(folder.store, first, pins.MLFLOW_MODEL, "a model", is_lasting=True)
    with stopped_before_it_deletes(folder, first, ignored=[key]):
        give_free(folder)
        begin_attempt(folder)
        assert kept(folder) == [2, 3]


def test_what_a_replaced_attempt_had_announced_only_stays(folder: RunFolder) -> None:
    first, _, _ = three(folder)
    listed: list[list[int]] = []

    def take_over() -> None:
        give_free(folder)
        begin_attempt(folder)
        listed.append(kept(folder))

    # It has announced, and goes on to look for pins, and at its lease.
    with pytest.raises(FencedError):
        delete_unless_pinned(RunWriter(held_up(folder, take_over, is_before=False), 1), str(first))
    assert listed == [[1, 2, 3]]
    assert kept(folder) == [1, 2, 3]


class Listed(Store):
    """Lets something happen after its first listing."""

    then: Callable[[], None] | None = None

    def names(self, key: str) -> list[str]:
        found = super().names(key)
        if then := self.then:
            self.then = None
            then()
        return found


def test_pins_of_what_is_committed_meanwhile_are_not_swept_away(folder: RunFolder) -> None:
    three(folder)

    def commit_and_pin() -> None:
        pins.pin(folder.store, commit(folder, 4, 2), "infer-1", "infer")

    store = Listed(folder.url)
    store.then = commit_and_pin
    pins.sweep(store)
    assert [found.who for found in pins.valid_pins(folder.store)] == ["infer-1"]
