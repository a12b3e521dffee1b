"""Training functions as people write them for Ray Train: no word of evertrain in here."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.fs
import ray.data
import ray.train
import ray.train.collective
import ray.train.torch
import torch
from ray import train
from ray.train import Checkpoint, CheckpointConfig, FailureConfig, RunConfig, ScalingConfig, report
from ray.train.torch import TorchTrainer
from torch import nn
from torch.optim import Adam


def report_number(
    metrics: dict[str, Any], number: int, *, by_all: bool = False, **more: Any
) -> None:
    """Rank 0, or each rank, reports a folder with a number; the others report metrics alone."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "number.txt").write_text(str(number))
        saves = by_all or train.get_context().get_world_rank() == 0
        checkpoint = Checkpoint.from_directory(folder) if saves else None
        train.report(metrics, checkpoint=checkpoint, **more)


def number_in(checkpoint: Checkpoint) -> int:
    """The number in its folder."""
    with checkpoint.as_directory() as folder:
        return int(Path(folder, "number.txt").read_text())


def save_and_resume(config: dict[str, Any]) -> None:
    """Ray's own example of restoring: model, optimizer and epoch, and an intentional error."""
    torch.manual_seed(0)
    features = torch.Tensor(np.random.default_rng(0).normal(0, 1, size=(100, 4)))
    targets = torch.Tensor(np.random.default_rng(1).uniform(0, 1, size=(100, 1)))
    model = ray.train.torch.prepare_model(nn.Linear(4, 1))
    module = model.module if hasattr(model, "module") else model
    optimizer = Adam(model.parameters(), lr=3e-2)
    criterion = nn.MSELoss()
    start_epoch = 0
    checkpoint = train.get_checkpoint()
    if checkpoint:
        with checkpoint.as_directory() as checkpoint_dir:
            module.load_state_dict(torch.load(os.path.join(checkpoint_dir, "model.pt")))
            optimizer.load_state_dict(torch.load(os.path.join(checkpoint_dir, "optimizer.pt")))
            extra = torch.load(os.path.join(checkpoint_dir, "extra_state.pt"))
            start_epoch = extra["epoch"] + 1
    for epoch in range(start_epoch, config["num_epochs"]):
        loss = criterion(model(features), targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        metrics = {"loss": loss.item(), "epoch": epoch}
        with tempfile.TemporaryDirectory() as temp_checkpoint_dir:
            checkpoint = None
            should_checkpoint = epoch % config.get("checkpoint_freq", 1) == 0
            if train.get_context().get_world_rank() == 0 and should_checkpoint:
                torch.save(module.state_dict(), os.path.join(temp_checkpoint_dir, "model.pt"))
                torch.save(
                    optimizer.state_dict(), os.path.join(temp_checkpoint_dir, "optimizer.pt")
                )
                torch.save({"epoch": epoch}, os.path.join(temp_checkpoint_dir, "extra_state.pt"))
                checkpoint = Checkpoint.from_directory(temp_checkpoint_dir)
            train.report(metrics, checkpoint=checkpoint)
        if epoch == config.get("fails_at") and not start_epoch:
            raise RuntimeError("Intentional error to showcase restoration!")
        time.sleep(config.get("pause_s", 0))


def shard_of_each_rank(config: dict[str, Any]) -> None:
    """Each rank saves its shard, and a file that all of them have."""
    rank = train.get_context().get_world_rank()
    for number in range(config.get("reports", 2)):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, f"model-rank={rank}.pt").write_text(f"{rank} of {number}")
            Path(folder, "common.json").write_text(json.dumps({"by": rank}))
            Path(folder, "deep", "er").mkdir(parents=True)
            Path(folder, "deep", "er", f"{rank}.bin").write_bytes(bytes(100 * rank))
            report({"number": number, "rank": rank}, checkpoint=Checkpoint.from_directory(folder))


def metrics_only(config: dict[str, Any]) -> None:
    """Reports metrics of many kinds, and no checkpoint."""
    for number in range(3):
        train.report(
            {
                "loss": torch.tensor(1.5 - number / 4).item(),
                "numpy": np.float32(number),
                "array": np.array([number]),
                "nan": float("nan"),
                "infinite": float("inf"),
                "text": f"epoch {number}",
                "eval": {"loss": 2.0 + number, "deep": {"er": 1}},
                "nothing": None,
                "flag": True,
            }
        )


REPORTED: dict[str, Any] = {
    "step": 2,
    "loss": 0.5,
    "is_best": True,
    "name": "two",
    "eval": {"rows": 100, "accuracy": 1.0},
}


def reads_what_it_reported(config: dict[str, Any]) -> dict[str, Any]:
    """Fails once; then it names a file after what it has reported, and returns that name."""
    checkpoint = train.get_checkpoint()
    if not checkpoint:
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "a").touch()
            made = Checkpoint.from_directory(folder)
            made.set_metadata({"classes": ["cat", "dog"]})
            train.report(REPORTED, checkpoint=made)
        raise RuntimeError("the first attempt fails")
    (found,) = train.get_all_reported_checkpoints()
    assert repr(found.metrics) == repr(REPORTED), found.metrics
    for one in (checkpoint, found.checkpoint):
        assert one.get_metadata() == {"classes": ["cat", "dog"]}
        with contextlib.suppress(ValueError):
            one.update_metadata({"classes": []})
            raise AssertionError("what is committed was changed")
    return {"name": f"checkpoint-{found.metrics['step']}", "loss": np.float32(0.5), "at": (1, None)}


def returns_a_model(config: dict[str, Any]) -> Any:
    """Returns what is no JSON on rank 0."""
    if train.get_context().get_world_rank() == 0:
        return nn.Linear(2, 2)
    return "of another rank"


def takes_memory() -> None:
    """Takes more and more memory, a hundred megabytes at a time."""
    taken = []
    for _ in range(200):
        taken.append(np.ones(100_000_000, dtype=np.uint8))
        time.sleep(0.05)
    raise RuntimeError(f"nobody has ended it with {len(taken)} pieces")


def asynchronous(config: dict[str, Any]) -> None:
    """Reports in the background, and deletes what it has uploaded."""
    mode = train.CheckpointUploadMode.ASYNC
    for number in range(4):
        folder = tempfile.mkdtemp()
        Path(folder, "number.txt").write_text(str(number))
        train.report(
            {"number": number},
            checkpoint=Checkpoint.from_directory(folder)
            if train.get_context().get_world_rank() == 0
            else None,
            checkpoint_upload_mode=mode,
            checkpoint_dir_name=f"own-name-{number}",
        )


def in_place(config: dict[str, Any]) -> None:
    """Rank 0 writes into Ray's storage, by NO_UPLOAD and an upload function; all ranks report."""
    storage = train.get_context().get_storage()
    is_rank0 = train.get_context().get_world_rank() == 0

    def upload(checkpoint: Checkpoint, name: str) -> Checkpoint:
        place = storage.build_checkpoint_path_from_name(name)
        if is_rank0:
            storage.storage_filesystem.create_dir(place)
            with checkpoint.as_directory() as folder:
                pyarrow.fs.copy_files(
                    folder, place, destination_filesystem=storage.storage_filesystem
                )
        ray.train.collective.barrier()
        return Checkpoint(place, filesystem=storage.storage_filesystem)

    place = storage.build_checkpoint_path_from_name("written-in-place")
    if is_rank0:
        storage.storage_filesystem.create_dir(place)
        with storage.storage_filesystem.open_output_stream(f"{place}/weights.bin") as file:
            file.write(b"in place")
    ray.train.collective.barrier()
    checkpoint = Checkpoint(place, filesystem=storage.storage_filesystem)
    mode = train.CheckpointUploadMode.NO_UPLOAD
    train.report({"number": 0}, checkpoint=checkpoint, checkpoint_upload_mode=mode)
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "weights.bin").write_bytes(b"uploaded")
        checkpoint = Checkpoint.from_directory(folder)
        train.report({"number": 1}, checkpoint=checkpoint, checkpoint_upload_fn=upload)


def uploads_slowly(config: dict[str, Any]) -> None:
    """Reports `num_epochs` folders, each of which takes `upload_s` to be uploaded, and resumes.

    The file `uploading-N` in the folder `place` says that rank 0 uploads the folder of epoch N.
    """
    checkpoint = train.get_checkpoint()
    first = number_in(checkpoint) + 1 if checkpoint else 0
    for number in range(first, config["num_epochs"]):

        def upload(checkpoint: Checkpoint, name: str, number: int = number) -> Checkpoint:
            Path(config["place"], f"uploading-{number}").touch()
            time.sleep(config["upload_s"])
            return checkpoint

        is_rank0 = train.get_context().get_world_rank() == 0
        metrics = {"loss": 1.0, "epoch": number}
        report_number(metrics, number, checkpoint_upload_fn=upload if is_rank0 else None)


def from_a_thread(config: dict[str, Any]) -> None:
    """Reports from another thread, and asks for its checkpoints and with other ranks."""
    thread = threading.Thread(target=report_number, args=({"loss": 1.0}, 7))
    thread.start()
    thread.join()
    ray.train.collective.barrier()
    found = train.get_all_reported_checkpoints()
    newest = train.get_checkpoint()
    assert newest is not None
    number = number_in(newest)
    names = ray.train.collective.broadcast_from_rank_zero([one.metrics["loss"] for one in found])
    train.report({"found": len(found), "same": names == [1.0], "is_read": number == 7})


def factory() -> TorchTrainer:
    """A trainer with all of its configurations."""
    return TorchTrainer(
        save_and_resume,
        train_loop_config={"num_epochs": 6, "fails_at": 2},
        scaling_config=ScalingConfig(num_workers=2),
        run_config=RunConfig(
            failure_config=FailureConfig(max_failures=1),
            checkpoint_config=CheckpointConfig(
                num_to_keep=2, checkpoint_score_attribute="loss", checkpoint_score_order="min"
            ),
        ),
    )


def reads_a_dataset(config: dict[str, Any]) -> None:
    """Reads its shard of a dataset of Ray Data."""
    shard = train.get_dataset_shard("train")
    seen = sum(len(batch["id"]) for batch in shard.iter_batches(batch_size=10))
    report({"seen": seen})


def with_a_dataset(cpus: float = 0.5) -> TorchTrainer:
    """A trainer whose workers share a dataset."""
    return TorchTrainer(
        reads_a_dataset,
        datasets={"train": ray.data.range(100)},
        scaling_config=ScalingConfig(num_workers=2, resources_per_worker={"CPU": cpus}),
    )


def with_a_dataset_and_half_a_cpu() -> TorchTrainer:
    """The same, with workers that leave half a CPU."""
    return with_a_dataset(cpus=(ray.cluster_resources()["CPU"] - 0.5) / 2)


def validate(
    checkpoint: Checkpoint,
    *,
    bonus: float = 0.0,
    seconds: float = 0.2,
    fails: bool = False,
    begun: str = "",
) -> dict[str, Any]:
    """Measures a checkpoint in the background: the later ones are worse."""
    number = number_in(checkpoint)
    if begun:
        Path(begun).touch()
    time.sleep(seconds)
    if fails:
        raise RuntimeError("the checkpoint cannot be measured")
    return {"accuracy": np.float32(1 - number / 10 + bonus), "by": "validate"}


def asks_for_validation(config: dict[str, Any]) -> None:
    """Reports folders that a validation function measures."""
    for number in range(4):
        report_number({"number": number}, number, validation=True)
    found = train.get_all_reported_checkpoints()
    assert all("accuracy" in one.metrics for one in found), found


def with_a_validation() -> TorchTrainer:
    """A trainer that keeps the two best by what its validation function measures."""
    return TorchTrainer(
        asks_for_validation,
        scaling_config=ScalingConfig(num_workers=1),
        run_config=RunConfig(
            checkpoint_config=CheckpointConfig(num_to_keep=2, checkpoint_score_attribute="accuracy")
        ),
        validation_config=train.ValidationConfig(
            fn=validate, task_config=train.ValidationTaskConfig(fn_kwargs={"bonus": 0.01})
        ),
    )


def reports_what_it_was_given(config: dict[str, Any]) -> None:
    """Reports a folder of its own again and again, and then the checkpoint that it was given."""
    storage = train.get_context().get_storage()
    own = Path(storage.build_checkpoint_path_from_name("work"))
    own.mkdir(exist_ok=True)
    for number in range(2):
        (own / "number.txt").write_text(str(number))
        train.report({"number": number}, checkpoint=Checkpoint.from_directory(own))
    train.report(
        {"number": 2},
        checkpoint=train.get_checkpoint(),
        delete_local_checkpoint_after_upload=True,
    )
    train.report({"kept": (own / "number.txt").read_text()})


def validate_when_it_may(checkpoint: Checkpoint) -> dict[str, Any]:
    """Waits until the test lets it go on."""
    while not Path(os.environ["EVERTRAIN_TEST_SCRATCH"], "go-on").exists():
        time.sleep(0.05)
    return {"accuracy": 1.0}


def fails_while_it_is_validated() -> None:
    """Fails in its first attempt; in the second one it finds all of its checkpoints validated."""
    is_again = train.get_checkpoint() is not None
    for number in [2] if is_again else [0, 1]:
        report_number({"number": number}, number, validation=True)
    if not is_again:
        raise RuntimeError("the first attempt fails")
    found = train.get_all_reported_checkpoints()
    assert [one.metrics["accuracy"] for one in found] == [1.0] * 3, found


def with_a_validation_that_waits() -> TorchTrainer:
    """A trainer with both."""
    return TorchTrainer(
        fails_while_it_is_validated,
        scaling_config=ScalingConfig(num_workers=1),
        validation_config=train.ValidationConfig(fn=validate_when_it_may),
    )


def fails_between_two_folders(config: dict[str, Any]) -> None:
    """Saves every third epoch, and fails before the second folder unless it may go on."""
    checkpoint = train.get_checkpoint()
    for epoch in range(number_in(checkpoint) + 1 if checkpoint else 0, 6):
        if epoch == 3 and not Path(config["scratch"], "go-on").exists():
            raise RuntimeError("it fails for good")
        metrics = {"epoch": epoch, "loss": 1 / (1 + epoch)}
        if epoch % 3 == 0:
            report_number(metrics, epoch, by_all=True)
        else:
            train.report(metrics)
