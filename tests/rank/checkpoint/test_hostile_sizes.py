"""Manifests that lie about sizes, and what is larger than it should be."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.rank.alone import run
from tests.rank.digests import digest_of_training
from train_core.errors import CheckpointError, StorageError
from train_core.storage.objects.digest_algorithm import new_digest
from train_core.storage.objects.retry_policy import storage_errors
from train_core.storage.objects.store import Store
from train_core.storage.records.manifest import FileEntry
from train_core.storage.records.verified_files import read_file
from train_core.storage.run_folder import Commit, RunFolder

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


def vouch_for_size(folder: RunFolder, name: str, size_bytes: int) -> Commit:
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
    ("name", "size_bytes", "reason"),
    [
        ("model.safetensors", MEMORY_BYTES - 2**20, f"{MEMORY_BYTES - 2**20} were committed"),
        ("model.safetensors", MEMORY_BYTES + 1, f"{MEMORY_BYTES + 1} were committed"),
        ("state.json", 10**30, "size_bytes: Input should be less than"),
    ],
    ids=["memory", "more", "a number"],
)
def test_a_size_that_no_memory_could_hold_is_a_lie_and_an_older_checkpoint_is_used(
    folder: RunFolder, name: str, size_bytes: int, reason: str
) -> None:
    expected = digest_of_training(folder)
    liar = vouch_for_size(folder, name, size_bytes)
    found = run(folder, attempt=2, **CONFIG)
    assert found.step == liar.name.step == 4
    assert reason in folder.quarantined()[str(liar.name)]
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


class NoRoom(Store):
    """A store on a machine that has not the memory for what it is to load."""

    def load(self, key: str, size_bytes: int) -> tuple[memoryview, str]:
        with storage_errors("read", self.uri(key)):
            raise MemoryError


def test_a_size_that_the_memory_has_no_room_for_just_now_may_be_a_lie_too(tmp_path: Path) -> None:
    store = NoRoom(str(tmp_path))
    store.write("object", b"bytes")
    truth = FileEntry.of("object", b"bytes")
    with pytest.raises(StorageError, match="do not fit into this machine's memory"):
        read_file(store, "object", truth)
    with pytest.raises(CheckpointError, match="has 5 bytes, 6 were committed"):
        read_file(store, "object", truth.model_copy(update={"size_bytes": 6}))


TOO_LARGE = 2**28
SMALL = 64 * 2**20
"""What reading may take of a file that is refused by its size, its beginning or a line of it."""
PARSED = 2 * TOO_LARGE + SMALL // 2
"""Of one that is parsed as a whole: what the disk's cache has of it, and its text."""
HEADER = (100 * 2**20).to_bytes(8, "little")


def made_large(path: Path, head: bytes = b"", size_bytes: int = TOO_LARGE) -> None:
    """A file of zeros, sparse on the disk."""
    with path.open("wb") as file:
        file.write(head)
        file.truncate(size_bytes)


def vouch_for(folder: RunFolder, path: Path) -> None:
    """Have the newest manifest list the file, of a checkpoint or of the journal, as it is now."""
    digest = new_digest()
    with path.open("rb") as file:
        while piece := file.read(2**20):
            digest.update(piece)
    entry = FileEntry(name=path.name, size_bytes=path.stat().st_size, digest=digest.hexdigest())
    newest = folder.checkpoints()[-1]
    changed = {
        kind: tuple(entry if one.name == path.name else one for one in listed)
        for kind, listed in (("files", newest.manifest.files), ("journal", newest.manifest.journal))
    }
    altered = newest.manifest.model_copy(update=changed)
    folder.store.write(f"{newest.key}/manifest.json", altered.to_json())


@pytest.mark.promise("untrusted-files")
@pytest.mark.slow
def test_what_is_too_large_takes_no_more_memory_than_it_says_here(tmp_path: Path) -> None:
    template = RunFolder(str(tmp_path / "template"), "run")
    run(template, **CONFIG)
    newest = template.checkpoints()[-1]
    segment = f"journal/{newest.manifest.journal[0].name}"
    documents = ["run.json", "report.json", "lease/0001.json"]
    documents.append(f"{newest.key}/manifest.json")
    # Each file: what it begins with, whether the manifest vouches for it, and what it may take.
    cases: list[tuple[str, bytes, bool, int, str]] = [
        *((file, b"", False, SMALL, "such a file has at most") for file in documents),
        (f"{newest.key}/model.safetensors", b"", False, SMALL, f"has {TOO_LARGE} bytes"),
        (f"{newest.key}/model.safetensors", b"", True, SMALL, "not a safetensors file"),
        (f"{newest.key}/model.safetensors", b"\xff" * 7, True, SMALL, "does not fit in the file"),
        # The largest that safetensors allows.
        (f"{newest.key}/model.safetensors", HEADER, True, 8 * SMALL, "not a safetensors file"),
        (segment, b"", True, SMALL, "not a segment of the journal"),
        (f"{newest.key}/state.json", b"", True, PARSED, "state.json is not JSON"),
    ]
    folders = [RunFolder(str(tmp_path / f"{number}"), "run") for number in range(len(cases))]
    for folder, (file, head, is_vouched_for, _, _) in zip(folders, cases, strict=True):
        shutil.copytree(template.url, folder.url)
        path = Path(folder.url, file)
        path.parent.mkdir(exist_ok=True)
        made_large(path, head)
        if is_vouched_for:
            vouch_for(folder, path)
    lines = subprocess.check_output(
        [
            sys.executable,
            "-m",
            "tests.ranks.peak_memory",
            template.url,
            *(f.url for f in folders),
        ],
        text=True,
    ).splitlines()
    (_, undisturbed), *found = map(json.loads, lines)
    assert undisturbed == []
    for (grown_bytes, said), (file, _, _, limit_bytes, expected) in zip(found, cases, strict=True):
        assert [expected in one for one in said] == [True], file
        assert grown_bytes < limit_bytes, f"{file}: {grown_bytes / 2**20:.0f} MiB"
