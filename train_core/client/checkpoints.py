"""The checkpoints of a run: listed, shown and verified."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from train_core.client.run import Run, folder_of
from train_core.errors import CheckpointError, ConfigError
from train_core.results import Result
from train_core.storage.addresses import absolute, run_at
from train_core.storage.objects.store import Store
from train_core.storage.records.names import CheckpointName
from train_core.storage.run_folder import Checkpoint, RunFolder
from train_core.storage.verification import faults


class ListedCheckpoint(Result):
    """A checkpoint in a list."""

    checkpoint: str
    step: int
    epoch: int
    size_bytes: int
    metrics: dict[str, float | None]


class CheckpointVerdict(Result):
    """The result of verifying a checkpoint."""

    checkpoint: str
    files: int | None = None
    journal: int | None = None
    """Journal segments."""
    faults: list[str] = []
    """The faults of the checkpoint; empty if it is good."""


def run_or_storage(what: str, default_storage: str) -> RunFolder | str:
    """The run at the address `what`, or of that name in the default storage; else its address.

    Raises ConfigError if there is nothing at that address, unless it is the default storage's.
    """
    url = absolute(what).rstrip("/")
    found = run_at(url)
    if found is not None:
        return found
    is_empty = not Store(url).names()
    if is_empty and (named := _run_named(what, default_storage)):
        return named
    if is_empty and url != default_storage:
        raise ConfigError(f"there is nothing at {url}: give a storage's or a run's address")
    return url


def _run_named(name: str, storage: str) -> RunFolder | None:
    with suppress(ConfigError):  # not a valid name of a run
        found = RunFolder(storage, name)
        return found if found.exists() else None
    return None


def list_checkpoints(folder: RunFolder) -> list[ListedCheckpoint]:
    """The good checkpoints of a run, oldest first."""
    return [
        ListedCheckpoint(
            checkpoint=str(one.name),
            step=one.manifest.step,
            epoch=one.manifest.epoch,
            size_bytes=sum(file.size_bytes for file in one.manifest.files),
            metrics=folder.summary(one).metrics,
        )
        for one in folder.checkpoints()
    ]


def checkpoint_facts(folder: RunFolder, checkpoint: Checkpoint) -> dict[str, Any]:
    """A checkpoint's manifest and its address, as JSON has them."""
    manifest = checkpoint.manifest.model_dump(mode="json")
    return manifest | {"uri": folder.store.uri(checkpoint.key)}


def verify_run(
    run: Run | RunFolder, checkpoint: CheckpointName | str | None = None
) -> Iterator[CheckpointVerdict]:
    """Read every file of a run's checkpoints, or of one, and compare it with what was committed."""
    folder = folder_of(run)
    for one in folder.checkpoints():
        if checkpoint is not None and str(checkpoint) != str(one.name):
            continue
        found = faults(folder, one)
        if found and not folder.exists_checkpoint(one.name):
            continue  # the training deleted it meanwhile
        manifest = one.manifest
        yield CheckpointVerdict(
            checkpoint=str(one.name),
            files=len(manifest.files),
            journal=len(manifest.journal),
            faults=found,
        )
    known_bad = {
        **{text: f"damaged: {reason}" for text, reason in folder.damaged().items()},
        **{text: f"quarantined: {reason}" for text, reason in folder.quarantined().items()},
    }
    for text, fault in known_bad.items():
        if checkpoint is None or text == str(checkpoint):
            yield CheckpointVerdict(checkpoint=text, faults=[fault])


def refuse_bad(verdicts: Iterable[CheckpointVerdict], folder: RunFolder) -> None:
    """Raise CheckpointError if one of the run's checkpoints is not what was committed."""
    verdicts = list(verdicts)
    bad = sum(bool(one.faults) for one in verdicts)
    if bad:
        raise CheckpointError(
            f"{bad} of {len(verdicts)} checkpoints of {folder.url} are not what was committed: a "
            "resume takes the newest good one, and warns"
        )
