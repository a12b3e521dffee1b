"""What the loop does when storage is slower than the checkpoints come, or fails."""

from __future__ import annotations

import json
import logging
import threading
from concurrent.futures import wait
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.rank.alone import create
from tests.rank.test_exact import CONFIG
from tests.ranks import watched_rank
from tests.ranks.processes import files, ranks
from train_core.config import TrainConfig
from train_core.errors import AttemptLostError, StorageError
from train_core.rank.checkpoint.checkpointer import Checkpointer
from train_core.rank.data.recorded_workload import with_monitor
from train_core.rank.distributed.group import Group
from train_core.rank.loop import Trainer
from train_core.storage.objects.retry_policy import retried
from train_core.storage.objects.store import Store
from train_core.storage.records.journal import Entry, read_segments
from train_core.storage.run_folder import RunFolder
from train_core.timing import SaveTiming, Timing


class SlowStore(Store):
    """Stores no file of a checkpoint before somebody waits for it."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.waited_for = threading.Event()

    def put(self, key: str, data: memoryview) -> str:
        assert self.waited_for.wait(60), "nobody waits for this checkpoint"
        return super().put(key, data)


class FailingStore(Store):
    """Cannot store one step's checkpoint, but for its first file."""

    failing = "step-00000003-a0001"

    def put(self, key: str, data: memoryview) -> str:
        if self.failing in key and not key.endswith("/model.safetensors"):
            raise StorageError("the disk is full")
        return super().put(key, data)


class WatchedCheckpointer(Checkpointer):
    """Has a slow store go on as soon as it is waited for."""

    def wait(self) -> None:
        store = self._run_writer.folder.store
        assert isinstance(store, SlowStore)
        if self.is_busy:
            store.waited_for.set()
        super().wait()
        store.waited_for.clear()


class WatchedTrainer(Trainer):
    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.checkpointer.__class__ = WatchedCheckpointer


class HandingOver(WatchedTrainer):
    """Notes after each step whether it could be replaced."""

    can: ClassVar[list[bool]] = []

    def step(self) -> None:
        super().step()
        self.can.append(self.can_hand_over)


class HandingOverWhatIsStored(HandingOver):
    def step(self) -> None:
        self.checkpointer.wait()
        super().step()


def prepared(storage_url: str, store: type[Store], **config: Any) -> tuple[RunFolder, TrainConfig]:
    """A run of five steps with a validation after the last one."""
    given: dict[str, Any] = {"workload": "tests.rank.tiny:Tiny", "batch_size": 32}
    given |= {"checkpoint_every_steps": 1, "keep_last": 99}
    asked = with_monitor(TrainConfig(**given | config))
    folder = RunFolder(storage_url, "run")
    folder.store = store(folder.url)
    create(folder, asked)
    return folder, asked


def trained(folder: RunFolder, config: TrainConfig, trainer: type[Trainer]) -> dict[int, Entry]:
    """The journal's entries of the steps, once the training is over."""
    trainer(folder, config, 1, Group.current()).run()
    entries = read_segments(folder.store, folder.checkpoints()[-1].manifest.journal)
    return {entry.step: entry for entry in entries if "train/loss" in entry.metrics}


def saved(folder: RunFolder) -> list[int]:
    return [one.manifest.step for one in folder.checkpoints()]


@pytest.mark.promise("cheap-checkpoints")
def test_skip_leaves_out_what_comes_too_early_and_counts_it(storage_url: str) -> None:
    folder, config = prepared(storage_url, SlowStore, checkpoint_backpressure="skip")
    entries = trained(folder, config, WatchedTrainer)
    # The first one is under way all the time; the last one has a validation, and is never skipped.
    assert saved(folder) == [1, 5]
    # What happened after a step is told with the next one.
    skipped = {step: entry.rates.get("checkpoint/skipped", 0) for step, entry in entries.items()}
    assert skipped == {1: 0, 2: 0, 3: 1, 4: 1, 5: 1}


@pytest.mark.promise("sigterm-of-a-worker")
@pytest.mark.parametrize(
    ("trainer", "after_the_validation"), [(HandingOver, False), (HandingOverWhatIsStored, True)]
)
def test_a_rank_hands_over_unless_a_checkpoint_with_a_validation_is_on_its_way(
    tmp_path: Path, trainer: type[HandingOver], *, after_the_validation: bool
) -> None:
    config = {"checkpoint_every_steps": 0, "epochs": 2}
    trainer.can.clear()
    trained(*prepared(str(tmp_path), SlowStore, **config), trainer)
    # The fifth step ends the first epoch.
    assert trainer.can == [True] * 5 + [after_the_validation] * 5


def test_skip_never_leaves_out_the_last_one(storage_url: str) -> None:
    folder, config = prepared(storage_url, SlowStore, checkpoint_backpressure="skip", max_steps=3)
    trained(folder, config, WatchedTrainer)
    assert saved(folder) == [1, 3]


@pytest.mark.promise("backpressure")
def test_skip_never_leaves_out_a_validated_one(storage_url: str) -> None:
    folder, config = prepared(
        storage_url, SlowStore, checkpoint_backpressure="skip", epochs=3, checkpoint_every_steps=4
    )
    trained(folder, config, WatchedTrainer)
    # Of 4 and 8 the storing is under way at 5 and 10, and of 10 at 12.
    assert saved(folder) == [4, 5, 10, 15]
    assert [one.manifest.validated for one in folder.checkpoints()] == [False, True, True, True]


@pytest.mark.promise("backpressure")
def test_wait_saves_all_and_counts_how_often_and_how_long(storage_url: str) -> None:
    folder, config = prepared(storage_url, SlowStore, checkpoint_backpressure="wait")
    entries = trained(folder, config, WatchedTrainer)
    assert saved(folder) == [1, 2, 3, 4, 5]
    waited = [step for step, entry in entries.items() if "checkpoint/waited_s" in entry.rates]
    assert waited == [3, 4, 5]
    assert [entries[step].rates["checkpoint/waited"] for step in waited] == [1, 1, 1]
    assert all(entries[step].rates["checkpoint/waited_s"] > 0 for step in waited)


class OneThatLooks(Trainer):
    """Notes in which step it is first heard that a checkpoint was not saved."""

    heard: list[int]
    log: pytest.LogCaptureFixture

    def step(self) -> None:
        if (storing := self.checkpointer._thread._storing) is not None:
            wait([storing], timeout=60)
        super().step()
        if "was not saved" in self.log.text:
            self.heard.append(self.progress.step)


@pytest.mark.promise("storage-outage")
def test_a_failed_save_is_told_at_the_next_step_with_its_cause(
    storage_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder, config = prepared(storage_url, FailingStore, checkpoint_every_steps=3)
    OneThatLooks.heard, OneThatLooks.log = [], caplog
    with caplog.at_level(logging.WARNING):
        entries = trained(folder, config, OneThatLooks)
    # The next save is that of step 5: it would have been too late.
    assert OneThatLooks.heard == [4, 5]
    assert "a checkpoint was not saved, training goes on: the disk is full" in caplog.text
    assert saved(folder) == [5]
    assert list(entries) == [1, 2, 3, 4, 5]
    failed = {step for step, entry in entries.items() if "checkpoint/failed" in entry.rates}
    assert failed == {4}


class OneThatRemembers(FailingStore):
    """Notes what lies in the folder of the checkpoint that failed, when the next one begins."""

    left: list[str]

    def put(self, key: str, data: memoryview) -> str:
        if "step-00000004" in key:
            self.left += self.names(f"checkpoints/{self.failing}")
        return super().put(key, data)


def test_what_a_failed_save_has_stored_makes_room_for_the_next(storage_url: str) -> None:
    folder, config = prepared(storage_url, OneThatRemembers, checkpoint_backpressure="wait")
    assert isinstance(folder.store, OneThatRemembers)
    folder.store.left = []
    trained(folder, config, OneThatWaits)
    assert saved(folder) == [1, 2, 4, 5]
    assert folder.store.left == []
    assert OneThatWaits.stored == ["model.safetensors"]


class OneThatWaits(Trainer):
    """Notes what the failed save has stored, before the next step."""

    stored: list[str]

    def step(self) -> None:
        if (storing := self.checkpointer._thread._storing) is not None:
            wait([storing], timeout=60)
        if self.progress.step == 3:
            OneThatWaits.stored = self.folder.store.names(f"checkpoints/{FailingStore.failing}")
        super().step()


def of_ranks(tmp_path: Path, how: str, slow: int) -> tuple[list[list[int]], list[Entry]]:
    """At which steps each of two ranks saves, and the journal; one of them has a slow storage.

    Its files are stored when rank 0 waits for them, and those of the other rank at once.
    """
    storage = str(tmp_path)
    config = CONFIG | {"epochs": 1, "num_shards": 2, "keep_last": 99}
    config |= {"checkpoint_every_steps": 1, "checkpoint_backpressure": how}
    task = {"storage": storage, "home": storage, "run": "run", "attempt": 1, "config": config}
    fault = {"rank": slow, "is_slow": True}
    with ranks(task, 2, fault, main=watched_rank.main) as processes:
        log, outcome = files(task)
        for process in processes:
            process.join(90)
            assert process.exitcode == 0, log.read_text()
        said = json.loads(outcome.read_text())
    folder = RunFolder(storage, "run")
    steps = said[0]["saved"]
    assert saved(folder) == steps, log.read_text()
    journal = read_segments(folder.store, folder.checkpoints()[-1].manifest.journal)
    return [one["saved"] for one in said], [e for e in journal if "train/loss" in e.metrics]


@pytest.mark.promise("backpressure")
@pytest.mark.parametrize("slow", [0, 1])
def test_all_ranks_skip_what_one_of_them_is_too_slow_for(slow: int, tmp_path: Path) -> None:
    of_each, journal = of_ranks(tmp_path, "skip", slow)
    # Rank 1's own storage is fast where rank 0's is slow: it knows by the control word alone.
    assert of_each == [[1, 5], [1, 5]]
    skipped = {entry.step: entry.rates.get("checkpoint/skipped", 0) for entry in journal}
    assert skipped == {1: 0, 2: 0, 3: 1, 4: 1, 5: 1}


@pytest.mark.parametrize("slow", [0, 1])
def test_all_ranks_wait_for_the_one_that_is_slow(slow: int, tmp_path: Path) -> None:
    of_each, journal = of_ranks(tmp_path, "wait", slow)
    assert of_each == [[1, 2, 3, 4, 5]] * 2
    waited = {entry.step: entry.rates.get("checkpoint/waited", 0) for entry in journal}
    assert waited == {1: 0, 2: 0, 3: 1, 4: 1, 5: 1}


class HangingStore(Store):
    """Stores no file of a checkpoint before the test is over."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.is_asked, self.goes_on = threading.Event(), threading.Event()

    def put(self, key: str, data: memoryview) -> str:
        self.is_asked.set()
        self.goes_on.wait(60)
        return super().put(key, data)


@pytest.mark.promise("worker-dies")
def test_who_waits_for_a_storage_leaves_an_attempt_that_is_lost(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, config = prepared(str(tmp_path), HangingStore, checkpoint_backpressure="wait")
    store = folder.store
    assert isinstance(store, HangingStore)

    def source() -> None:
        if store.is_asked.is_set():
            raise AttemptLostError("rank 1 died")

    timing = Timing(saving=SaveTiming(close_timeout_s=0.1))
    trainer = Trainer(folder, config, 1, Group.current(), stop_source=source, timing=timing)
    try:
        with pytest.raises(AttemptLostError, match="rank 1 died"):
            trainer.run()
    finally:
        store.goes_on.set()
        trainer.checkpointer.close()
    assert "a checkpoint was not saved" not in caplog.text


@pytest.mark.parametrize("call", ["raise_if_any_failed", "call_on_rank0"])
def test_the_loss_of_a_rank_is_told_to_no_other_one(call: str) -> None:
    """One that has lost another is in no state to exchange anything."""

    def lose() -> None:
        raise AttemptLostError("rank 1 died")

    # It would exchange what it caught with another rank, and there is no group.
    group = replace(Group.current(), world_size=2)
    with pytest.raises(AttemptLostError):
        getattr(group, call)(lose)


def test_no_client_of_a_storage_tries_again_what_ends_an_attempt() -> None:
    calls = []

    def once(left_s: float) -> None:
        calls.append(left_s)
        raise AttemptLostError("rank 1 died")

    with pytest.raises(AttemptLostError):
        retried(once, "read x")
    assert len(calls) == 1
