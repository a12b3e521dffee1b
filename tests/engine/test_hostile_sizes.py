"""Manifests that lie about sizes, and what is larger than it should be."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.engine.alone import run
from tests.engine.digests import digest_of_training
from train_core.errors import StorageError
from train_core.storage.run_folder import Checkpoint, RunFolder

CONFIG = {
    "settings": {"num_train": 64, "num_validation": 20},
    "epochs": 2,
    "checkpoint_every_steps": 1,
    "checkpoint_backpressure": "wait",
    "keep_last": 9,
}
MEMORY_BYTES = psutil.virtual_memory().total


@pytest.fixture
def folder(storage_url: str) -> RunFolder:
    """A run whose last checkpoints are those of steps 3 and 4."""
    folder = RunFolder(storage_url, "run")
    run(folder, **CONFIG)
    return folder


def vouch_for_size(folder: RunFolder, name: str, size_bytes: int) -> Checkpoint:
    """Have the newest manifest say that its file `name` is so large."""
    newest = folder.checkpoints()[-1]
    files = tuple(
        entry.model_copy(update={"size_bytes": size_bytes}) if entry.name == name else entry
        for entry in newest.manifest.files
    )
    altered = newest.manifest.model_copy(update={"files": files})
    folder.store.write(f"{newest.key}/manifest.json", altered.to_json())
    return newest


@pytest.mark.parametrize(
    ("name", "size_bytes"),
    [
        ("model.safetensors", MEMORY_BYTES - 2**20),
        ("model.safetensors", MEMORY_BYTES + 1),
        ("state.json", 10**30),
    ],
    ids=["memory", "more", "a number"],
)
def test_a_size_that_no_memory_could_hold_is_a_lie_and_an_older_checkpoint_is_used(
    folder: RunFolder, name: str, size_bytes: int
) -> None:
    expected = digest_of_training(folder)
    liar = vouch_for_size(folder, name, size_bytes)
    found = run(folder, attempt=2, **CONFIG)
    assert found.step == liar.name.step == 4
    assert f"{size_bytes} were committed" in folder.quarantined()[str(liar.name)]
    assert digest_of_training(folder) == expected


def test_what_is_truly_too_large_for_this_machine_is_no_damage(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    run(folder, **CONFIG)
    large = vouch_for_size(folder, "model.safetensors", MEMORY_BYTES + 1)
    with open(folder.store.path(f"{large.key}/model.safetensors"), "r+b") as file:
        file.truncate(MEMORY_BYTES + 1)  # sparse: nothing is written
    with pytest.raises(StorageError, match="do not fit into this machine's memory"):
        run(folder, attempt=2, **CONFIG)
    assert folder.quarantined() == {}
    assert folder.checkpoints()[-1].name == large.name
