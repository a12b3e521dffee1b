"""The checkpoints of a run: listed, shown, verified and exported."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import suppress
from typing import Any

from train_core.champion.of_run import faults_of
from train_core.client.checkpoint import Checkpoint
from train_core.client.run import Run, folder_of
from train_core.errors import ConfigError, StorageError
from train_core.quick_imports import garbage_collection_paused
from train_core.results import ExportResult, Result
from train_core.storage.addresses import absolute, file_at, run_at
from train_core.storage.objects.store import Store
from train_core.storage.records.names import MODEL_FILE, CheckpointName
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.run_writer import lift_quarantine
from train_core.storage.verification.runs import RunVerification, Verdict

_NOWHERE = CheckpointName(0, 0)


class ListedCheckpoint(Result):
    """A checkpoint in a list. Of one that is not good only its name, step and fault are set."""

    checkpoint: str
    step: int
    epoch: int | None = None
    size_bytes: int | None = None
    reported_as: str = ""
    """The name that a training function gave its folder (`checkpoint_dir_name`), if it gave one."""
    metrics: dict[str, float | None] = {}
    fault: str = ""
    """What is wrong with it; empty if it is good."""


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
    """The checkpoints of a run, oldest first; those that are not good with what is wrong."""
    found = folder.scan()
    listed = [
        ListedCheckpoint(
            checkpoint=str(one.name),
            step=one.step,
            epoch=one.manifest.epoch,
            size_bytes=one.size_bytes,
            reported_as=one.manifest.reported.name if one.manifest.reported else "",
            metrics=one.metrics,
        )
        for one in found.good
    ]
    faults = {str(name): f"damaged: {why}" for name, why in found.damaged.items()}
    faults |= {str(name): f"newer: {why}" for name, why in found.newer.items()}
    if found.quarantined:
        faults |= {text: f"quarantined: {why}" for text, why in folder.quarantined().items()}
    for text, fault in faults.items():
        if name := CheckpointName.parse(text):
            listed.append(ListedCheckpoint(checkpoint=text, step=name.step, fault=fault))
    return sorted(listed, key=lambda one: CheckpointName.parse(one.checkpoint) or _NOWHERE)


def checkpoint_facts(folder: RunFolder, checkpoint: Commit) -> dict[str, Any]:
    """A checkpoint's manifest and its address, as JSON has them."""
    manifest = checkpoint.manifest.model_dump(mode="json")
    return manifest | {"uri": folder.store.uri(checkpoint.key)}


def verify_run(
    run: Run | RunFolder, checkpoint: CheckpointName | str | None = None
) -> Iterator[Verdict]:
    """Read every byte of a run, or of one checkpoint, and compare it with what was committed.

    There is a verdict on run.json, on each checkpoint, evaluation and batch inference, on
    report.json, and on any other document that cannot be read. A quarantined checkpoint all of
    whose bytes are good now loses its mark, and its verdict says so: it counts again.
    """
    only = None if checkpoint is None else CheckpointName.parse(str(checkpoint))
    if checkpoint is not None and only is None:
        raise ConfigError(f"{checkpoint!r} is not the name of a checkpoint")
    folder = folder_of(run)
    for verdict in RunVerification(folder).run(only):
        name = CheckpointName.parse(verdict.what)
        if name is not None and verdict.quarantined is not None:
            yield _lifted(folder, name, verdict)
        else:
            yield verdict
    if only is None:
        for key, fault in faults_of(folder).items():
            yield Verdict(what=key, faults=[fault])


def _lifted(folder: RunFolder, name: CheckpointName, verdict: Verdict) -> Verdict:
    """The verdict, after the quarantine of its checkpoint was lifted."""
    try:
        lift_quarantine(folder, name)
    except StorageError as error:
        fault = f"quarantined: {verdict.quarantined}. All its bytes are good now, but {error}"
        return verdict.model_copy(update={"faults": [fault], "quarantined": None})
    return verdict


def export_weights(
    run: Run | RunFolder,
    checkpoint: Checkpoint | Commit,
    target: str,
    *,
    overwrite: bool = False,
) -> ExportResult:
    """Write a checkpoint's verified weights as one safetensors file. Imports torch.

    `target` is the file's path or URL, or a folder's, which then gets `model.safetensors`. Raises
    ConfigError if there is a file and it may not be overwritten, CheckpointError if the checkpoint
    is not good, and StorageError.
    """
    address = absolute(target)
    if not address.endswith(".safetensors"):
        address = f"{address.rstrip('/')}/{MODEL_FILE}"
    store, key = file_at(address)
    if not overwrite and store.exists(key):
        raise ConfigError(f"{store.uri(key)} exists: name another file, or overwrite it (--force)")
    with garbage_collection_paused():
        from train_core.tools import export
    folder = folder_of(run)
    return export.export_weights(folder, folder.find(str(checkpoint.name)), store, key)


def findings_in_short(verdicts: Collection[Verdict], folder: RunFolder) -> str:
    """How many parts of the run are not what was committed; empty if all are."""
    if not (bad := sum(bool(one.faults) for one in verdicts)):
        return ""
    return (
        f"{bad} of {len(verdicts)} parts of {folder.url} are not what was committed: a resume "
        "takes the newest good checkpoint, and warns"
    )
