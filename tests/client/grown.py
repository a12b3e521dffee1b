"""A run folder as a training leaves it, without the training: journal, files, commits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.storage.samples import manifest, record
from train_core.storage.records.journal import Entry
from train_core.storage.records.manifest import CheckpointManifest, FileEntry
from train_core.storage.records.names import CheckpointName
from train_core.storage.records.tensor_file import lay_out
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.run_writer import RunWriter, create_run

ACCURACY = "validation/accuracy"


def create(storage: str, run: str = "digits", **config: Any) -> RunFolder:
    """A run that has nothing yet; it monitors the accuracy unless `config` says otherwise."""
    folder = RunFolder(storage, run)
    create_run(folder, record(run, **config))
    return folder


def grow(folder: RunFolder, step: int, accuracy: float | None, **change: Any) -> Commit:
    """Two steps more until `step`, a validation, and a checkpoint; `change` is of its manifest."""
    before = folder.newest()
    entries = [
        *(_trained(one) for one in (step - 1, step)),
        Entry(step=step, time=step + 0.5, metrics={ACCURACY: accuracy}),
    ]
    return commit(folder, step, entries, before, {ACCURACY: accuracy}, **change)


def commit(
    folder: RunFolder,
    step: int,
    entries: list[Entry],
    before: Commit | None,
    metrics: Mapping[str, float | None],
    **change: Any,
) -> Commit:
    """A checkpoint whose journal has the entries after those of the one before."""
    writer = RunWriter(folder, change.get("attempt", 1))
    files = contents(step)
    fields = {
        "files": tuple(FileEntry.of(name, data) for name, data in files.items()),
        "epoch": step // 2,
        "samples_seen": step * 64,
        "metrics": {"train/loss": 1 / step, **metrics},
        "journal": writer.append_to_journal(before.manifest.journal if before else (), entries),
    }
    whole = dict(manifest(step, writer.attempt)) | fields | change
    made = CheckpointManifest.model_validate(whole)
    key = f"checkpoints/{CheckpointName(step, writer.attempt)}"
    for entry in made.files:
        folder.store.write(f"{key}/{entry.name}", files[entry.name.rpartition("/")[2]])
    return writer.commit(made)


def contents(step: int) -> dict[str, bytes]:
    head = lay_out({"weight": ("I64", (1,))}, {}).head
    return {"model.safetensors": head + step.to_bytes(8, "little"), "state.json": b"{}"}


def _trained(step: int) -> Entry:
    rates = {"train/samples_per_s": 100.0 * step}
    return Entry(step=step, time=step, metrics={"train/loss": 1 / step}, rates=rates)
