"""Values that several tests of storage need."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from train_core.config import TrainConfig
from train_core.storage.records.manifest import CheckpointManifest, FileEntry
from train_core.storage.records.names import CheckpointName
from train_core.storage.records.run_record import RunRecord
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter

WEIGHTS = b"weights"


def manifest(step: int = 1, attempt: int = 1, /, **change: Any) -> CheckpointManifest:
    """The manifest of a checkpoint with one file, and with another value of what is changed."""
    made = CheckpointManifest(
        created_at="2026-01-01T00:00:00Z",
        attempt=attempt,
        files=(FileEntry.of("model.safetensors", WEIGHTS),),
        step=step,
        epoch=0,
        samples_seen=step * 128,
        metrics={"validation/accuracy": 0.5, "train/loss": None},
        validated=True,
        stopped_by="",
        journal=(FileEntry.of("steps-00000001-00000001-a0001.jsonl", b"{}\n"),),
    )
    return made.model_copy(update=change)


def record(name: str = "run", **config: object) -> RunRecord:
    """The record of a run, with the monitor that a driver finds for it."""
    monitored = (
        {} if config.keys() & {"train_fn", "trainer"} else {"monitor": "validation/accuracy"}
    )
    return RunRecord(
        name=name,
        created_at="2026-01-01T00:00:00Z",
        config=TrainConfig.model_validate(monitored | config),
        pipeline={"predict_split": "test"},
        fingerprint={"torch": "2.13.0"},
        datasets={"train": {"num_samples": 100, "digest": "0" * 64}},
    )


def save(folder: RunFolder, step: int, attempt: int) -> CheckpointName:
    """A checkpoint's file, without the manifest that makes it exist."""
    name = CheckpointName(step, attempt)
    folder.store.write(f"checkpoints/{name}/model.safetensors", WEIGHTS)
    return name


def commit(folder: RunFolder, step: int, attempt: int) -> CheckpointName:
    name = save(folder, step, attempt)
    RunWriter(folder, attempt).commit(manifest(step, attempt))
    return name


@st.composite
def damaged(draw: st.DrawFn, data: bytes) -> bytes:
    """`data` with a bit flipped, or without some of its bytes, or with one too many."""
    at = draw(st.integers(0, len(data) - 1))
    how = draw(st.sampled_from(["flip", "cut", "take out", "add"]))
    if how == "flip":
        return data[:at] + bytes([data[at] ^ 1 << draw(st.integers(0, 7))]) + data[at + 1 :]
    if how == "cut":
        return data[:at]
    if how == "take out":
        return data[:at] + data[at + 1 :]
    return data[:at] + draw(st.binary(min_size=1, max_size=1)) + data[at:]
