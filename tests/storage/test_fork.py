"""A fork copies what was committed, and nothing else."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client.grown import create, grow
from train_core.errors import CheckpointError
from train_core.storage.fork import fork_checkpoint
from train_core.storage.run_folder import RunFolder
from train_core.storage.verification.checkpoints import faults

MODEL = "checkpoints/step-00000002-a0001/model.safetensors"
MANIFEST = "checkpoints/step-00000002-a0001/manifest.json"
SEGMENT = "journal/steps-00000001-00000002-a0001.jsonl"


@pytest.fixture
def folder(storage_url: str) -> RunFolder:
    return grown(storage_url)


def grown(storage: str) -> RunFolder:
    folder = create(storage)
    grow(folder, 2, 0.5)
    return folder


def garble(folder: RunFolder, key: str) -> None:
    data = bytearray(folder.store.read(key))
    data[-1] ^= 1
    folder.store.write(key, bytes(data))


def cut(folder: RunFolder, key: str) -> None:
    folder.store.write(key, folder.store.read(key)[:-1])


def remove(folder: RunFolder, key: str) -> None:
    folder.store.delete(key)


def refuse_to_fork(
    folder: RunFolder, spoil: Callable[[RunFolder, str], None], key: str, told: str = ""
) -> None:
    """The fork is refused, says why, and leaves nothing in the way of another one."""
    (checkpoint,) = folder.checkpoints()
    spoil(folder, key)
    with pytest.raises(CheckpointError, match=told or key.rpartition("/")[2]):
        fork_checkpoint(folder, checkpoint, "fork")
    fork = RunFolder(folder.storage, "fork")
    assert not fork.exists()
    assert fork.store.names("checkpoints") == []


@pytest.mark.promise("verified-copies")
@pytest.mark.parametrize("key", [MODEL, MANIFEST, SEGMENT])
@pytest.mark.parametrize("spoil", [garble, cut, remove])
def test_what_is_not_what_was_committed_is_not_forked(
    folder: RunFolder, spoil: Callable[[RunFolder, str], None], key: str
) -> None:
    refuse_to_fork(folder, spoil, key)
    step = 4
    later = grow(create(folder.storage, "other"), step, 0.5)
    assert fork_checkpoint(RunFolder(folder.storage, "other"), later, "fork").exists()


@pytest.mark.promise("verified-copies", "untrusted-files")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("key", [MODEL, MANIFEST, SEGMENT])
@pytest.mark.parametrize("kind", ["link", "link above", "pipe"])
def test_a_fork_follows_no_link_and_waits_for_no_pipe(tmp_path: Path, kind: str, key: str) -> None:
    folder = grown(str(tmp_path / "storage"))

    def spoil(folder: RunFolder, key: str) -> None:
        path = Path(folder.url, key)
        if kind == "link above":
            path.parent.rename(tmp_path / "outside")
            path.parent.symlink_to(tmp_path / "outside")
            return
        path.rename(tmp_path / "outside")
        if kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(tmp_path / "outside")

    refuse_to_fork(folder, spoil, key, "is a pipe" if kind == "pipe" else "reached by the link")


def test_a_fork_is_what_was_committed(folder: RunFolder) -> None:
    (checkpoint,) = folder.checkpoints()
    fork = fork_checkpoint(folder, checkpoint, "fork")
    (copied,) = fork.checkpoints()
    assert (copied.digest, faults(fork, copied)) == (checkpoint.digest, [])
