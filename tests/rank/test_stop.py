"""A training that is asked to stop: all ranks save after one step, and it goes on from there."""

from __future__ import annotations

import time
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torchmetrics import Metric

from tests.marks import slow
from tests.rank.alone import create
from tests.rank.test_exact import CONFIG
from tests.rank.tiny import Tiny
from tests.ranks import rank
from tests.ranks.processes import train
from tests.ranks.rank import MortalTrainer
from train_core.config import TrainConfig
from train_core.rank.data.recorded_workload import with_monitor
from train_core.rank.distributed.control_message import ControlMessage, RankRequests
from train_core.rank.distributed.group import Group
from train_core.rank.distributed.stop_requests import StopRequests
from train_core.rank.loop import Trainer
from train_core.storage.coordination.stop_request import StopRequest, ask_to_stop, stop_request
from train_core.storage.fork import fork_checkpoint
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import begin_attempt
from train_core.workload import Batch

ASKED_AFTER = 2


class AskingTrainer(MortalTrainer):
    """Its rank 0 asks, as somebody outside would, and waits until it has heard itself."""

    def step(self) -> None:
        if self.progress.step == ASKED_AFTER and self.attempt == 1 and self.group.is_rank0:
            ask_to_stop(self.folder.store, self.attempt, "the test wants it")
            while not self.stop_requests.is_asked:
                time.sleep(0.01)
        super().step()


def main(*arguments: Any) -> None:
    rank.MortalTrainer = AskingTrainer  # type: ignore[misc]  # in this process, which is a rank
    rank.main(*arguments)


@pytest.mark.promise("unscheduled", "stop-everywhere")
@pytest.mark.parametrize(("workers", "after"), [slow(1, 2), (2, 1), (3, 4)])
def test_all_ranks_stop_after_the_same_step_and_go_on_from_there(
    workers: int, after: int, tmp_path: Path
) -> None:
    # Step 4 is no third one, and no epoch's last.
    config = CONFIG | {"num_shards": 4, "keep_last": 2, "checkpoint_every_steps": 3}
    storage = str(tmp_path)
    undisturbed = train(storage, "undisturbed", attempt=1, workers=1, config=config)

    train(storage, "run", attempt=1, workers=workers, config=config, main=main)

    last = RunFolder(storage, "run").checkpoints()[-1]
    # The wish travels in the word of step 3, which is read in step 4.
    assert (last.manifest.step, last.manifest.stopped_by) == (ASKED_AFTER + 2, "request")
    assert (last.manifest.is_last, last.manifest.scheduled) == (False, False)
    again = train(storage, "run", attempt=2, workers=after, config=config)
    assert again == {"digest": undisturbed["digest"], "resumed_from": ASKED_AFTER + 2}
    kept = {run: RunFolder(storage, run).checkpoints() for run in ("undisturbed", "run")}
    steps = {run: [one.manifest.step for one in found] for run, found in kept.items()}
    assert steps["run"] == steps["undisturbed"]


ASKED_IN_EPOCH = "ask-in-epoch"
"""A file that says in which epoch's validation the first attempt is asked to stop."""


class Lengthy(Tiny):
    """A validation takes seconds, also the third of it."""

    measured = 0

    def update_metric(self, metric: Metric, outputs: Any, batch: Batch, name: str) -> None:
        super().update_metric(metric, outputs, batch, name)
        self.measured += 1
        time.sleep(0.15)


class AskingInValidation(MortalTrainer):
    """Its rank 0 asks as the validation of an epoch begins, and notes how much each measured."""

    def end_epoch(self) -> None:
        home = Path(self.folder.storage)
        if self.progress.epoch != int((home / ASKED_IN_EPOCH).read_text()):
            super().end_epoch()
            return
        self.loaded.workload.__class__ = type("Lengthy", (Lengthy, type(self.loaded.workload)), {})
        if self.group.is_rank0:
            ask_to_stop(self.folder.store, self.attempt, "the test wants it")
        super().end_epoch()
        assert isinstance(self.loaded.workload, Lengthy)
        (home / f"measured-{self.group.rank}").write_text(str(self.loaded.workload.measured))


def main_of_validation(*arguments: Any) -> None:
    rank.MortalTrainer = AskingInValidation  # type: ignore[misc]  # in this process, which is a rank
    rank.main(*arguments)


CASES = {
    "Tiny": {},
    "StreamingTiny": {"workload": "tests.rank.tiny:StreamingTiny"},
    # The run ends there, by a reason of its own, but not before its validation.
    "max-steps": {"max_steps": 5, "epochs": 9},
    "early-stopping": {"early_stopping_patience": 1, "early_stopping_min_delta": 10.0},
}


@pytest.mark.promise("stop-everywhere")
@pytest.mark.parametrize(
    ("case", "workers", "after", "epoch"),
    [
        *(slow("Tiny", 1, 2, 0), ("Tiny", 2, 1, 1), slow("Tiny", 3, 3, 1)),
        *(slow("StreamingTiny", 1, 2, 0), slow("StreamingTiny", 2, 1, 1)),
        *(("max-steps", 2, 2, 0), ("early-stopping", 1, 2, 1)),
    ],
)
def test_a_validation_that_is_interrupted_starts_over(
    case: str, workers: int, after: int, epoch: int, tmp_path: Path
) -> None:
    # A checkpoint is due after each epoch's last step, with its validation.
    config = CONFIG | {"eval_batch_size": 1, "checkpoint_every_steps": 5} | CASES[case]
    storage = str(tmp_path)
    undisturbed = train(storage, "undisturbed", attempt=1, workers=1, config=config)

    (tmp_path / ASKED_IN_EPOCH).write_text(str(epoch))
    train(storage, "run", attempt=1, workers=workers, config=config, main=main_of_validation)
    for number in range(workers):
        # All would be 70 samples x 2 metrics, shared by the ranks.
        assert int((tmp_path / f"measured-{number}").read_text()) < 140 // (workers + 1)

    (*_, last) = RunFolder(storage, "run").checkpoints()
    assert (last.manifest.step, last.manifest.epoch) == (5 * (epoch + 1), epoch)
    assert (last.manifest.stopped_by, last.manifest.scheduled) == ("request", False)
    assert not last.manifest.is_last
    again = train(storage, "run", attempt=2, workers=after, config=config)
    assert again == {"digest": undisturbed["digest"], "resumed_from": 5 * (epoch + 1)}
    runs = (RunFolder(storage, run).checkpoints() for run in ("undisturbed", "run"))
    one, other = ([(c.manifest.step, c.manifest.metrics) for c in found] for found in runs)
    assert other == one


@pytest.mark.slow
def test_a_rank_without_validation_resumes_before_one_with_fsdp(tmp_path: Path) -> None:
    # One batch is all there is to validate, and another rank's.
    config = CONFIG | {"num_shards": 2, "eval_batch_size": 128, "strategy": "fsdp"}
    storage = str(tmp_path)
    undisturbed = train(storage, "undisturbed", attempt=1, workers=2, config=config)
    train(storage, "run", attempt=1, workers=2, config=config, main=main_before_validation)
    (*_, last) = RunFolder(storage, "run").checkpoints()
    assert (last.manifest.step, last.manifest.epoch) == (5, 0)
    again = train(storage, "run", attempt=2, workers=2, config=config)
    assert again == {"digest": undisturbed["digest"], "resumed_from": 5}


class AskedBeforeValidation(MortalTrainer):
    """Its ranks have heard that they shall stop as the first validation begins."""

    def end_epoch(self) -> None:
        self.stop_requests.ask(StopRequest(reason="the test wants it"))
        super().end_epoch()


def main_before_validation(*arguments: Any) -> None:
    rank.MortalTrainer = AskedBeforeValidation  # type: ignore[misc]  # in this process, which is a rank
    rank.main(*arguments)


def test_a_fork_from_before_a_validation_does_not_commit_over_what_it_was_given(
    tmp_path: Path,
) -> None:
    storage = str(tmp_path)
    config = CONFIG | {"eval_batch_size": 128, "max_steps": 5}
    undisturbed = train(storage, "undisturbed", attempt=1, workers=1, config=config)
    folder = RunFolder(storage, "run")
    create(folder, TrainConfig.model_validate(config))
    # The name of the fork's own second attempt, if its attempts were counted from one.
    train(storage, "run", attempt=2, workers=1, config=config, main=main_before_validation)
    given = folder.checkpoints()[-1]
    fork = fork_checkpoint(folder, given, "fork")
    held = begin_attempt(fork)
    again = train(storage, "fork", attempt=held.attempt, workers=1, config=config)
    assert again == {"digest": undisturbed["digest"], "resumed_from": 5}
    assert fork.checkpoints()[-1].manifest.is_last


def test_a_request_is_for_one_attempt(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    ask_to_stop(folder.store, 7, "Ctrl-C")
    assert stop_request(folder.store, 7) == StopRequest(reason="Ctrl-C")
    assert stop_request(folder.store, 8) is None


def test_who_asked_for_an_end_gets_it_and_who_is_to_move_may_still_be_asked_for_an_end() -> None:
    move, end = StopRequest(reason="a drain", goes_on=True), StopRequest(reason="Ctrl-C")
    assert move.replaces(None)
    assert end.replaces(None)
    assert end.replaces(move)
    assert not move.replaces(end)
    assert not end.replaces(end)
    assert not move.replaces(move)


@pytest.mark.parametrize("nonsense", [b"{}", b"", b'{"format": 99, "reason": "later"}'])
def test_nonsense_is_no_request_and_does_not_deafen(nonsense: bytes, tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    requests = StopRequests(partial(stop_request, folder.store, 1), poll_s=1)
    folder.store.write("lease/0001-stop.json", nonsense)
    requests.poll()
    assert not requests.is_asked
    ask_to_stop(folder.store, 1, "Ctrl-C")
    requests.poll()
    assert requests.is_asked


def test_the_end_has_its_own_reason_also_if_somebody_asked(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    config = TrainConfig(workload="tests.rank.tiny:Tiny", batch_size=32, max_steps=2)
    create(folder, config)
    trainer = Trainer(folder, with_monitor(config), 1, Group.current())
    trainer.stop_requests.ask(StopRequest(reason="the test wants it"))
    assert trainer.run().stopped_by == "max_steps"


REQUESTS = [field.name for field in fields(RankRequests)]


@pytest.mark.parametrize("name", REQUESTS)
def test_the_control_message_tells_requests_apart(name: str) -> None:
    assert not dist.is_initialized()
    message = ControlMessage(1, Group.current())
    message.send(RankRequests(**{name: True}))
    assert message.read().requests == RankRequests(**{name: True})


@pytest.mark.parametrize("one", REQUESTS)
@pytest.mark.parametrize("other", REQUESTS)
def test_what_either_requests_is_requested(one: str, other: str) -> None:
    both = RankRequests(**{one: True}) | RankRequests(**{other: True})
    assert both == RankRequests(**{one: True, other: True})
    assert both | RankRequests() == both
