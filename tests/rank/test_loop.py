"""The training loop, alone in this process, on a disk and on S3."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from tests.marks import slow
from tests.plugins.leaks import Belongings
from tests.rank import alone
from tests.rank.digests import digest_of_training, journal_of
from tests.rank.tiny import Tiny
from tests.ranks.processes import train
from tests.storage.samples import manifest
from train_core.config import TrainConfig
from train_core.errors import CheckpointError, DataError, NotFiniteError
from train_core.rank.checkpoint.progress import Progress
from train_core.rank.data.recorded_workload import with_monitor
from train_core.rank.distributed.group import Group
from train_core.rank.distributed.stop_requests import StopRequests
from train_core.rank.loop import Trainer
from train_core.scoring.evaluate import load_model
from train_core.storage.cleanup.retention_after_commit import (
    _delete_merged_segments,
    delete_superseded,
)
from train_core.storage.fork import fork_checkpoint
from train_core.storage.objects.store import Store
from train_core.storage.records.journal import read_segments
from train_core.storage.records.manifest import FileEntry
from train_core.storage.records.names import MODEL_FILE, CheckpointName
from train_core.storage.records.run_record import RunRecord
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt, create_run, quarantine


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(str(tmp_path), "run")


@pytest.fixture(scope="session", autouse=True)
def warm() -> None:
    """What torch keeps for good (its pool of threads, open libraries) is no test's leak."""
    import torch

    torch.nn.functional.cross_entropy(
        torch.zeros(2, 2, requires_grad=True), torch.zeros(2, dtype=torch.long)
    ).backward()


def run(folder: RunFolder, attempt: int = 1, **config: Any) -> Progress:
    given = {
        "workload": "tests.rank.tiny:Tiny",
        "batch_size": 32,
        "eval_batch_size": 16,
        "checkpoint_backpressure": "wait",
    }
    asked = TrainConfig(**given | config)
    if not folder.exists():
        create_run(
            folder,
            RunRecord(
                name=folder.name,
                created_at=datetime.now(UTC).isoformat(),
                config=asked.fixed(),
                pipeline={},
                fingerprint={},
                datasets={},
            ),
        )
    return Trainer(folder, with_monitor(asked), attempt, Group.current()).run()


@pytest.mark.promise("exact-training")
def test_what_is_drawn_after_the_passes_depends_on_the_step_alone(folder: RunFolder) -> None:
    """Whatever a rank's last shard has drawn: hooks draw the same on every rank."""
    config = TrainConfig(workload="tests.rank.tiny:Tiny", batch_size=32)
    alone.create(folder, config)
    trainer = Trainer(folder, with_monitor(config), 1, Group.current())
    drawn = []
    for step, num_drawn_before in ((0, 0), (0, 5), (1, 0)):
        torch.rand(num_drawn_before)
        trainer.learner.apply_gradients(step)
        drawn.append(float(torch.rand(1)))
    trainer.close()
    assert drawn[0] == drawn[1] != drawn[2]


@pytest.mark.parametrize(("nan_from_step", "raised"), [(-1, None), (3, NotFiniteError)])
def test_all_that_a_training_starts_has_ended_when_it_returns(
    folder: RunFolder, nan_from_step: int, raised: type[Exception] | None
) -> None:
    config = TrainConfig(
        workload="tests.rank.tiny:Tiny",
        batch_size=32,
        max_steps=6,
        data_workers=2,
        settings={"nan_from_step": nan_from_step},
    )
    alone.create(folder, config)
    before = Belongings.now()
    trainer = Trainer(folder, with_monitor(config), 1, Group.current())
    with pytest.raises(raised) if raised else nullcontext():
        trainer.run()
    # The trainer is still there, and with it all that it refers to.
    assert not before.added(within_s=2)
    assert trainer.progress.step >= 4


@pytest.mark.parametrize("rank", [0, 1])
def test_a_trainer_that_cannot_join_the_others_leaves_no_thread(
    rank: int, folder: RunFolder
) -> None:
    config = TrainConfig(workload="tests.rank.tiny:Tiny", batch_size=32, num_workers=2)
    alone.create(folder, config)
    before = Belongings.now()
    # One of two ranks, in a process that has joined no group.
    with pytest.raises(ValueError, match="process group"):
        Trainer(folder, with_monitor(config), 1, Group(rank, 2, torch.device("cpu")))
    assert not before.added(within_s=2)


class BrokenRequests(StopRequests):
    """Whose thread cannot be ended in order."""

    def close(self) -> None:
        super().close()
        raise OSError("cannot be ended")


def test_an_error_while_a_training_closes_leaves_nothing_open(folder: RunFolder) -> None:
    config = TrainConfig(workload="tests.rank.tiny:Tiny", batch_size=32, data_workers=1)
    alone.create(folder, config)
    before = Belongings.now()
    trainer = Trainer(folder, with_monitor(config), 1, Group.current())
    trainer.stop_requests = BrokenRequests(lambda: None, poll_s=1)
    with pytest.raises(OSError, match="cannot be ended"):
        trainer.run()
    assert not before.added(within_s=2)


def test_it_ends_alike_on_any_storage(storage_url: str, folder: RunFolder) -> None:
    elsewhere = RunFolder(storage_url, "run")
    run(folder, epochs=2)
    run(elsewhere, epochs=2, max_steps=7)
    run(elsewhere, attempt=2, epochs=2)
    assert digest_of_training(elsewhere) == digest_of_training(folder)


def test_finished_run_is_not_trained_again(folder: RunFolder) -> None:
    run(folder, epochs=1)
    before = digest_of_training(folder)
    assert run(folder, attempt=2, epochs=1).step == 5
    assert digest_of_training(folder) == before
    assert {c.name.attempt for c in folder.checkpoints()} == {1}


def test_every_sample_is_validated_once(folder: RunFolder) -> None:
    for num_validation in (1, 16, 17, 70):
        at = RunFolder(folder.store.uri("x"), f"n{num_validation}")
        progress = run(at, settings={"num_validation": num_validation}, num_shards=3)
        assert progress.metrics["validation/count"] == num_validation


def test_every_step_is_in_the_journal_once(folder: RunFolder) -> None:
    run(folder, epochs=2, checkpoint_every_steps=3, clip_norm=1.0)
    journal = journal_of(folder)
    assert [step for step, metrics in journal if "train/loss" in metrics] == list(range(1, 11))
    assert [step for step, metrics in journal if "validation/loss" in metrics] == [5, 10]
    assert all("train/grad_norm" in m for _, m in journal if "train/loss" in m)


def test_accumulation_changes_no_sample_and_no_weight(folder: RunFolder) -> None:
    whole = RunFolder(folder.store.uri(""), "whole")
    cut = RunFolder(folder.store.uri(""), "cut")
    # Without BatchNorm's and dropout's dependence on the batch, the mean loss is the same.
    plain = {"workload": "tests.rank.tiny:Linear", "epochs": 1}
    run(whole, **plain)
    run(cut, accumulation_steps=4, **plain)
    losses = [
        [metrics["train/loss"] for _, metrics in journal_of(at) if "train/loss" in metrics]
        for at in (whole, cut)
    ]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.promise("not-a-number")
def test_not_a_number_stops_with_its_step_and_keeps_the_last_good_checkpoint(
    folder: RunFolder,
) -> None:
    with pytest.raises(NotFiniteError) as raised:
        run(folder, checkpoint_every_steps=1, settings={"nan_from_step": 3})
    assert raised.value.step == 4
    assert raised.value.last_good == "step-00000003-a0001"
    assert max(c.manifest.step for c in folder.checkpoints()) == 3


@pytest.mark.promise("not-a-number")
def test_not_a_number_is_told_also_if_the_next_pass_fails_by_it(folder: RunFolder) -> None:
    with pytest.raises(NotFiniteError) as raised:
        run(folder, workload="tests.rank.tiny:DrawsClasses", settings={"nan_from_step": 3})
    assert raised.value.step == 4


def test_early_stopping_counts_over_an_interruption(folder: RunFolder) -> None:
    config = {
        "epochs": 9,
        "monitor": "validation/count",  # never better than at first
        "early_stopping_patience": 2,
        "checkpoint_every_steps": 4,
    }
    run(folder, max_steps=8, **config)
    progress = run(folder, attempt=2, **config)
    assert (progress.stopped_by, progress.epoch) == ("early_stopping", 3)
    assert run(folder, attempt=3, **config).step == progress.step


def test_maximum_duration_ends_with_a_checkpoint(folder: RunFolder) -> None:
    progress = run(folder, epochs=1000, max_duration_s=0.3)
    assert progress.stopped_by == "max_duration"
    newest = max(folder.checkpoints(), key=lambda c: c.name)
    assert newest.manifest.step == progress.step
    assert newest.manifest.stopped_by == "max_duration"


def test_checkpoints_by_seconds(folder: RunFolder) -> None:
    run(folder, batch_size=15, checkpoint_every_epochs=0, checkpoint_every_s=1e-9, keep_last=50)
    # A wish of one step is acted on at the next; what was wished for meanwhile is done then.
    assert [c.manifest.step for c in folder.checkpoints()] == [2, 4, 6, 8, 10]


def test_more_epochs_go_on_from_the_last_step(folder: RunFolder) -> None:
    run(folder, epochs=1)
    progress = run(folder, attempt=2, epochs=2)
    assert (progress.step, progress.epoch) == (10, 2)


@pytest.mark.promise("extend-and-fork")
def test_a_run_that_is_extended_ends_as_one_that_was_asked_for_more(folder: RunFolder) -> None:
    # A schedule spans what was asked at first: more epochs keep its last rate.
    settings = {"one_cycle": False}
    run(folder, epochs=1, settings=settings)
    run(folder, attempt=2, epochs=3, settings=settings)
    at_once = RunFolder(folder.storage, "at-once")
    run(at_once, epochs=3, settings=settings)
    assert digest_of_training(folder) == digest_of_training(at_once)


@pytest.mark.promise("retention")
def test_retention_keeps_newest_and_best(folder: RunFolder) -> None:
    run(folder, epochs=6, keep_last=1, keep_best=2, monitor="validation/loss", monitor_order="min")
    losses = {
        step: metrics["validation/loss"]
        for step, metrics in journal_of(folder)
        if "validation/loss" in metrics
    }
    best = sorted(losses, key=lambda step: (losses[step], -step))[:2]
    assert {c.manifest.step for c in folder.checkpoints()} == {30, *best}


@pytest.mark.promise("damaged-checkpoint")
def test_damaged_checkpoint_is_quarantined_and_an_older_one_is_used(
    folder: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    run(folder, epochs=2)
    reference = digest_of_training(folder)
    newest = max(folder.checkpoints(), key=lambda c: c.name)
    key = f"{newest.key}/model.safetensors"
    data = bytearray(folder.store.read(key))
    data[-1] ^= 1
    folder.store.write(key, bytes(data))
    run(folder, attempt=2, epochs=2)
    reason = folder.quarantined()[str(newest.name)]
    assert "digest" in reason
    warned = [one.getMessage() for one in caplog.records if one.levelname == "WARNING"]
    assert warned == [f"checkpoint {newest.name} of run 'run' is quarantined: {reason}"]
    assert digest_of_training(folder) == reference
    (only, *_) = reversed(folder.checkpoints())
    told = [e for e in read_segments(folder.store, only.manifest.journal) if e.step == 6]
    assert [entry.rates.get("checkpoint/quarantined") for entry in told] == [1]


def test_empty_dataset_is_refused(folder: RunFolder) -> None:
    with pytest.raises(DataError, match="train split is empty"):
        run(folder, settings={"num_train": 0})
    with pytest.raises(DataError, match="validation split is empty"):
        run(folder, settings={"num_validation": 0})


@pytest.mark.promise("not-a-number")
def test_weights_that_are_no_numbers_are_never_committed(folder: RunFolder) -> None:
    with pytest.raises(NotFiniteError, match="a weight of the model"):
        run(folder, workload="tests.rank.tiny:Poisoned", checkpoint_every_steps=1)
    assert max(c.manifest.step for c in folder.checkpoints()) == 2


def test_summary_of_a_checkpoint_has_no_other_steps_validation(folder: RunFolder) -> None:
    run(folder, epochs=2, checkpoint_every_steps=3, keep_last=9)
    summaries = {c.step: c for c in map(folder.summary, folder.checkpoints())}
    assert "validation/loss" in summaries[5].metrics
    assert "validation/loss" not in summaries[6].metrics
    assert "train/loss" in summaries[6].metrics


def test_a_fork_goes_on_as_its_origin_did(storage_url: str) -> None:
    origin = RunFolder(storage_url, "origin")
    run(origin, epochs=2, checkpoint_every_steps=3, keep_last=9)
    (middle,) = [c for c in origin.checkpoints() if c.manifest.step == 3]
    fork = fork_checkpoint(origin, middle, "fork")
    assert fork.record().forked_from == origin.store.uri(middle.key)
    assert run(fork, attempt=2, epochs=2, checkpoint_every_steps=3, keep_last=9).step == 10
    assert digest_of_training(fork) == digest_of_training(origin)
    with pytest.raises(FileExistsError):
        fork_checkpoint(origin, middle, "fork")


def test_what_a_dead_process_did_not_delete_is_deleted_later(folder: RunFolder) -> None:
    every = {"epochs": 3, "checkpoint_every_steps": 2, "keep_best": 1}
    run(folder, **every, keep_last=99)
    pruned = RunFolder(folder.storage, "pruned")
    run(pruned, **every, keep_last=1)
    assert len(folder.checkpoints()) > len(pruned.checkpoints())
    delete_superseded(RunWriter(folder, 1), pruned.record().config)
    assert [c.name for c in folder.checkpoints()] == [c.name for c in pruned.checkpoints()]


def test_the_reports_best_checkpoint_is_never_deleted(folder: RunFolder) -> None:
    run(folder, epochs=2, checkpoint_every_steps=2, keep_last=9)
    oldest = folder.checkpoints()[0]
    folder.store.write("report.json", json.dumps({"best": {"name": str(oldest.name)}}).encode())
    config = folder.record().config.model_copy(update={"keep_last": 1, "keep_best": 1})
    delete_superseded(RunWriter(folder, 1), config)
    assert oldest.name in [c.name for c in folder.checkpoints()]


def test_weights_that_fail_to_verify_are_quarantined_when_they_are_evaluated(
    folder: RunFolder,
) -> None:
    run(folder)
    (found,) = folder.checkpoints()
    sizes = {entry.name: entry.size_bytes for entry in found.manifest.files}
    folder.store.write(f"{found.key}/{MODEL_FILE}", b"x" * sizes[MODEL_FILE])
    config = folder.record().config.model_copy(update={"gpus_per_worker": 0})
    with pytest.raises(CheckpointError, match="Start the same run again"):
        load_model(folder.url, config, str(found.name))
    assert folder.checkpoints() == []
    assert list(folder.quarantined()) == [str(found.name)]


def test_the_journal_of_a_quarantined_checkpoint_stays(folder: RunFolder) -> None:
    run(folder, epochs=1)
    (only,) = folder.checkpoints()
    quarantine(folder, only.name, "for the test")
    # One that lists the same segments, and a newer one without them.
    for step, journal in ((6, only.manifest.journal), (7, ())):
        name = CheckpointName(step, 1)
        for file in only.manifest.files:
            folder.store.copy(
                f"{only.key}/{file.name}", folder.store, f"checkpoints/{name}/{file.name}"
            )
        changed = {"step": step, "journal": journal, "validated": False}
        RunWriter(folder, 1).commit(only.manifest.model_copy(update=changed))
    config = folder.record().config.model_copy(update={"keep_last": 1})
    delete_superseded(RunWriter(folder, 1), config)
    assert [c.name.step for c in folder.checkpoints()] == [7]
    assert {segment.name for segment in only.manifest.journal} <= set(folder.store.names("journal"))


class Unlike(Tiny):
    """Keeps a tensor of another kind on the second worker."""

    kinds = (torch.zeros(2, 3), torch.zeros(2, 3))

    def state_dict(self) -> dict[str, Any]:
        return {"kept": self.kinds[int(os.environ.get("RANK", "0"))]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Nothing is kept."""


class UnlikeInSize(Unlike):
    kinds = (torch.zeros(2, 3), torch.zeros(400, 3))


class UnlikeInShape(Unlike):
    kinds = (torch.zeros(2, 3), torch.zeros(3, 2))


class UnlikeInType(Unlike):
    kinds = (torch.zeros(2, 3), torch.zeros(2, 3, dtype=torch.int32))


@pytest.mark.parametrize("name", [slow("UnlikeInSize"), "UnlikeInShape", slow("UnlikeInType")])
def test_workers_with_other_states_commit_nothing(name: str, tmp_path: Path) -> None:
    config = {
        "workload": f"tests.rank.test_loop:{name}",
        "batch_size": 32,
        "num_shards": 2,
        "checkpoint_backpressure": "wait",
    }
    with pytest.raises(AssertionError, match="the workers' states differ"):
        train(str(tmp_path), "run", attempt=1, workers=2, config=config)
    assert RunFolder(str(tmp_path), "run").checkpoints() == []


class Watched(Store):
    """Whose reader, with an older manifest in hand, looks after each deletion."""

    listed: ClassVar[list[str]] = []

    def delete(self, key: str) -> None:
        super().delete(key)
        there = [name in self.names("journal") for name in self.listed]
        # A beginning without a gap: what it misses now is all after what it has.
        assert there == sorted(there, reverse=True)


def test_merged_segments_are_deleted_from_the_end(folder: RunFolder) -> None:
    name = CheckpointName(3, 1)
    segments = tuple(
        FileEntry.of(f"steps-{step:08d}-{step:08d}-a0001.jsonl", b"{}\n") for step in (1, 2, 3)
    )
    for one in segments:
        folder.store.write(f"journal/{one.name}", b"{}\n")
    older = Commit(manifest(3, 1).model_copy(update={"journal": segments}), "")
    folder.store = Watched(folder.url)
    Watched.listed = [one.name for one in segments]
    begin_attempt(folder)
    _delete_merged_segments(RunWriter(folder, 1), [older], {str(name)})
    assert folder.store.names("journal") == []
