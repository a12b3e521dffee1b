"""Ranks that a driver asks to stop, by its own store: the storage may be away, or the data late."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.rank.tiny import Tiny
from tests.ranks import rank
from tests.ranks.processes import files, ranks, train
from tests.ranks.rank import MortalFolder, MortalTrainer
from tests.storage.doubles.faulty_store import LOOK, FaultyStore
from tests.waiting import wait_for
from train_core import ArrayDataset, Columns
from train_core.rank.distributed.rendezvous import LOOPBACK, RendezvousStore
from train_core.rank.distributed.stop_requests import post_stop
from train_core.storage.coordination.stop_request import StopRequest
from train_core.storage.objects.store import Store
from train_core.storage.run_folder import RunFolder
from train_core.workload import Dataset, Split, Stream

CONFIG: dict[str, Any] = {
    "workload": "tests.rank.tiny:Tiny",
    "batch_size": 32,
    "eval_batch_size": 16,
    "epochs": 2,
    "checkpoint_every_steps": 1,
    "checkpoint_backpressure": "wait",
    "num_shards": 2,
    "keep_last": 9,
    "grace_s": 20,
}
BEFORE_END_OF_EPOCH = 4
"""An epoch has five steps; the checkpoint with its validation is tried again and again itself."""


class AwayTrainer(MortalTrainer):
    """Its storage is away when the test says so; it notes that it waits for it.

    As long as `hold` is there it begins no step before it has received a request.
    """

    def __init__(self, folder: MortalFolder, *args: Any, **more: Any) -> None:
        self.home = Path(folder.storage)
        folder.store = FaultyStore(folder.url, self.home / "notes")  # type: ignore[assignment]  # no MortalStore
        super().__init__(folder, *args, **more)
        wait = self.checkpointer._wait_for_room

        def noted() -> None:
            if self.progress.step == BEFORE_END_OF_EPOCH + 2:
                (self.home / f"waits-{self.group.rank}").touch()
            wait()

        self.checkpointer._wait_for_room = noted  # type: ignore[method-assign]  # in this process

    def step(self) -> None:
        while (self.home / "hold").exists() and not self.stop_requests.is_asked:
            time.sleep(0.01)
        super().step()

    def run(self) -> Any:
        progress = super().run()
        (self.home / f"ended-{self.group.rank}").write_text(str(self.has_saved))
        self.folder.store = Store(self.folder.url)  # type: ignore[assignment]  # for what the test reads
        return progress


def main_away(*arguments: Any) -> None:
    logging.basicConfig(level=logging.INFO)
    rank.MortalTrainer = AwayTrainer  # type: ignore[misc]  # in this process, which is a rank
    rank.main(*arguments)


class LateData(ArrayDataset):
    """Waits as long as a file is there."""

    scratch: Path

    def __getitems__(self, indices: Any) -> Columns:
        while (self.scratch / "late").exists():
            (self.scratch / "waits").touch()
            time.sleep(0.01)
        return super().__getitems__(indices)


class Late(Tiny):
    """Its data for the training come late."""

    def dataset(self, split: Split) -> Dataset | Stream:
        data = super().dataset(split)
        if split == "train":
            assert isinstance(data, ArrayDataset)
            data.__class__ = LateData
            data.scratch = Path(self.settings.scratch)  # type: ignore[attr-defined]  # as of now
        return data


class Asked:
    """Ranks under way, the driver that asks them, and their storage."""

    def __init__(self, task: dict[str, Any], processes: list[Any], driver: RendezvousStore) -> None:
        self.folder = RunFolder(task["storage"], task["run"])
        self.home = Path(task["home"])
        self.store = FaultyStore(self.folder.url, Path(task["storage"], "notes"))
        self._driver, self._group = driver, task["run"]
        self._log, _ = files(task)
        self._processes = processes

    def wait_for(self, what: Callable[[], object]) -> None:
        first = self._processes[0]
        wait_for(what, 60, self._log.read_text, every_s=0.02, ended=lambda: first.exitcode)

    def wait_for_line(self, text: str) -> None:
        self.wait_for(lambda: text in self._log.read_text())

    def take_storage_away(self) -> None:
        self.store.fail_at(1, times=None)
        self.store.fail_at(1, kind=LOOK, times=None)

    def ask(self) -> float:
        """Ask them to end; when."""
        post_stop(self._driver, self._group, StopRequest(reason="the test wants it"))
        return time.monotonic()

    def end(self) -> float:
        """Wait for the end of all; when."""
        for process in self._processes:
            process.join(60)
            assert process.exitcode == 0, self._log.read_text()
        return time.monotonic()


@contextmanager
def begun(
    storage: Path, step: int, meanwhile: Callable[[Asked], None], **config: Any
) -> Iterator[Asked]:
    """Two ranks that did `meanwhile` before the step after `step`."""
    driver = RendezvousStore(LOOPBACK)
    task = {
        "storage": str(storage),
        "home": str(storage),
        "run": "run",
        "attempt": 1,
        "config": CONFIG | config,
        "driver": driver.address,
    }
    fault = {"point": "stop_before_step", "step": step, "rank": 0}
    with ranks(task, 2, fault, main=main_away) as processes:
        asked = Asked(task, processes, driver)
        first = psutil.Process(processes[0].pid)
        asked.wait_for(lambda: first.status() == psutil.STATUS_STOPPED)
        meanwhile(asked)
        first.resume()
        yield asked


def check_that_it_goes_on(storage: Path, resumed_from: int) -> None:
    """The run comes to the end of one that nobody disturbed."""
    undisturbed = train(str(storage), "undisturbed", attempt=1, workers=1, config=CONFIG)
    again = train(str(storage), "run", attempt=2, workers=2, config=CONFIG)
    assert again == {"digest": undisturbed["digest"], "resumed_from": resumed_from}


def have_saved(storage: Path) -> list[str]:
    return [(storage / f"ended-{number}").read_text() for number in range(2)]


@pytest.mark.promise("grace")
def test_ranks_whose_storage_is_away_end_in_order_within_their_grace(tmp_path: Path) -> None:
    def disturb(asked: Asked) -> None:
        asked.take_storage_away()
        (asked.home / "hold").touch()
        asked.ask()

    grace_s = 8
    with begun(tmp_path, 2, disturb, grace_s=grace_s) as asked:
        asked_at = time.monotonic()
        asked.wait_for_line("asked to stop: the test wants it")
        assert asked.end() - asked_at < grace_s
    assert have_saved(tmp_path) == ["False", "False"]
    newest = RunFolder(str(tmp_path), "run").checkpoints()[-1]
    assert newest.manifest.stopped_by == ""
    check_that_it_goes_on(tmp_path, newest.step)


@pytest.mark.promise("grace")
def test_a_storage_that_comes_back_within_the_grace_gets_the_last_checkpoint(
    tmp_path: Path,
) -> None:
    def disturb(asked: Asked) -> None:
        asked.take_storage_away()
        (asked.home / "hold").touch()
        asked.ask()

    with begun(tmp_path, 2, disturb) as asked:
        asked.wait_for_line("was not saved, training goes on")
        asked.store.work_again()
        asked.end()
    assert have_saved(tmp_path) == ["True", "True"]
    newest = RunFolder(str(tmp_path), "run").checkpoints()[-1]
    assert newest.manifest.stopped_by == "request"
    check_that_it_goes_on(tmp_path, newest.step)


def wait_until_all_wait_for_the_storage(asked: Asked) -> None:
    asked.wait_for(lambda: all((asked.home / f"waits-{number}").exists() for number in range(2)))


@pytest.mark.promise("grace")
@pytest.mark.slow
def test_a_request_that_comes_while_ranks_wait_for_the_storage_ends_the_wait(
    tmp_path: Path,
) -> None:
    grace_s = 8
    with begun(tmp_path, BEFORE_END_OF_EPOCH, Asked.take_storage_away, grace_s=grace_s) as asked:
        wait_until_all_wait_for_the_storage(asked)
        asked_at = asked.ask()
        assert asked.end() - asked_at < grace_s
    assert have_saved(tmp_path) == ["False", "False"]
    check_that_it_goes_on(tmp_path, RunFolder(str(tmp_path), "run").checkpoints()[-1].step)


@pytest.mark.slow
def test_the_step_after_which_ranks_wait_for_the_storage_is_the_last_if_a_request_comes(
    tmp_path: Path,
) -> None:
    with begun(tmp_path, BEFORE_END_OF_EPOCH, Asked.take_storage_away) as asked:
        wait_until_all_wait_for_the_storage(asked)
        asked.ask()
        asked.wait_for_line("asked to stop: the test wants it")
        asked.store.work_again()
        asked.end()
    newest = RunFolder(str(tmp_path), "run").checkpoints()[-1]
    # It was due anyway.
    assert (newest.manifest.stopped_by, newest.manifest.scheduled) == ("request", True)
    assert newest.step == BEFORE_END_OF_EPOCH + 2
    check_that_it_goes_on(tmp_path, newest.step)


def test_a_request_that_comes_while_ranks_wait_for_data_is_followed_when_these_come(
    tmp_path: Path,
) -> None:
    def disturb(_: Asked) -> None:
        (tmp_path / "late").touch()

    late = {
        "workload": "tests.rank.test_stop_by_driver:Late",
        "settings": {"scratch": str(tmp_path)},
    }
    with begun(tmp_path, 2, disturb, **late) as asked:
        asked.wait_for((tmp_path / "waits").exists)
        asked.ask()
        # No thread that answers waits for the data.
        asked.wait_for_line("asked to stop: the test wants it")
        (tmp_path / "late").unlink()
        asked.end()
    newest = RunFolder(str(tmp_path), "run").checkpoints()[-1]
    assert newest.manifest.stopped_by == "request"
    assert newest.step <= 5
