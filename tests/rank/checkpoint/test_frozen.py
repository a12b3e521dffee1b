"""Weights that the training leaves as they are lie in a file of their own, which is sent once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import safetensors.torch

from tests.rank.digests import digest_of_training
from tests.rank.test_loop import run
from train_core.rank.checkpoint.reader import read_model
from train_core.storage.objects.store import Store
from train_core.storage.run_folder import RunFolder
from train_core.storage.verification.checkpoints import faults

FROZEN, TRAINED = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
CONFIG = {"workload": "tests.rank.tiny:Backbone", "keep_last": 9}


class Counting(Store):
    """Counts the bytes that are sent to it."""

    num_bytes = 0

    def put(self, key: str, data: memoryview) -> str:
        self.num_bytes += len(data)
        return super().put(key, data)


@pytest.fixture
def folder(storage_url: str) -> RunFolder:
    found = RunFolder(storage_url, "run")
    found.store = Counting(found.store.url)
    return found


def sent(folder: RunFolder) -> int:
    assert isinstance(folder.store, Counting)
    return folder.store.num_bytes


@pytest.mark.promise("frozen-weights")
def test_frozen_weights_are_sent_once_and_are_in_every_checkpoint(folder: RunFolder) -> None:
    run(folder, epochs=1, **CONFIG)
    first = sent(folder)
    run(folder, attempt=2, epochs=3, **CONFIG)
    checkpoints = folder.checkpoints()
    assert len(checkpoints) == 3
    entries = [{f.name: f for f in c.manifest.files} for c in checkpoints]
    frozen = entries[0][FROZEN]
    assert all(files[FROZEN] == frozen for files in entries)
    assert len({files[TRAINED].digest for files in entries}) == 3
    # Neither the later checkpoints nor the first one after a resume send them again.
    each = (sent(folder) - first) / 2
    total = sum(file.size_bytes for file in entries[1].values())
    assert each == pytest.approx(total - frozen.size_bytes, rel=0.05)
    for checkpoint in checkpoints:
        assert faults(folder, checkpoint) == []


@pytest.mark.promise("frozen-weights")
def test_a_checkpoint_outlives_the_one_that_its_frozen_weights_came_from(folder: RunFolder) -> None:
    run(folder, epochs=3, **CONFIG | {"keep_last": 1, "keep_best": 1})
    newest = max(folder.checkpoints(), key=lambda c: c.name)
    assert faults(folder, newest) == []
    assert len(folder.checkpoints()) < 3


@pytest.mark.promise("readable")
def test_the_index_says_which_file_has_which_tensor(folder: RunFolder) -> None:
    run(folder, epochs=1, **CONFIG)
    (only,) = folder.checkpoints()
    index = json.loads(folder.store.read(f"{only.key}/model.safetensors.index.json"))
    weights = read_model(folder.store, only).weights
    assert index["weight_map"].keys() == weights.keys()
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in weights.values())
    for file in (FROZEN, TRAINED):
        tensors = safetensors.torch.load(folder.store.read(f"{only.key}/{file}"))
        assert {name for name, at in index["weight_map"].items() if at == file} == tensors.keys()


def test_weights_that_are_called_frozen_and_change_are_sent(folder: RunFolder) -> None:
    run(
        folder,
        epochs=2,
        **CONFIG | {"workload": "tests.ranks.fsdp_rank:Averaging"},
    )
    digests = [
        {file.digest for file in c.manifest.files if file.name == FROZEN}
        for c in folder.checkpoints()
    ]
    assert len(digests[0] | digests[1]) == 2


def test_a_resumed_run_ends_alike(folder: RunFolder, tmp_path: Path) -> None:
    undisturbed = RunFolder(str(tmp_path / "undisturbed"), "run")
    run(undisturbed, epochs=2, **CONFIG)
    run(folder, epochs=2, max_steps=7, **CONFIG)
    run(folder, attempt=2, epochs=2, **CONFIG)
    assert digest_of_training(folder) == digest_of_training(undisturbed)
