"""One read that gives other bytes damages nothing; a quarantine without damage is lifted."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest

from evertrain_flows.cli.app import main
from tests.rank import alone
from tests.rank.digests import digest_of_training
from tests.storage.samples import manifest
from train_core.client.checkpoints import verify_run
from train_core.errors import CheckpointError
from train_core.storage.objects.digest_algorithm import digest_of
from train_core.storage.objects.store import Store
from train_core.storage.records.manifest import FileEntry
from train_core.storage.records.names import CheckpointName
from train_core.storage.records.verified_files import (
    copy_file,
    download_file,
    fault_of,
    read_file,
    write_file,
)
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import begin_attempt, quarantine

READ_TWICE = "was read wrongly once, and rightly when it was read again"


class SpoiledReads(Store):
    """Flips the last bit of what the first `bad_reads` reads of each object named give.

    The object itself stays as it is.
    """

    spoiled: ClassVar[tuple[str, ...]] = ()
    bad_reads: ClassVar[int] = 1
    read_so_far: ClassVar[Counter[str]] = Counter()

    @classmethod
    def spoil(cls, *keys: str, bad_reads: int = 1) -> None:
        """Spoil the next reads of the objects at these keys."""
        cls.spoiled, cls.bad_reads, cls.read_so_far = keys, bad_reads, Counter()

    def read(self, key: str, max_bytes: int | None = None) -> bytes:
        return self._seen(key, super().read(key, max_bytes))

    def piece(self, key: str, start: int, end: int) -> bytes:
        return self._seen(key, super().piece(key, start, end))

    def load(self, key: str, size_bytes: int) -> tuple[memoryview, str]:
        data, _ = super().load(key, size_bytes)
        seen = memoryview(bytearray(self._seen(key, bytes(data))))
        return seen, digest_of(seen)

    def download(self, key: str, local: str | Path) -> str:
        super().download(key, local)
        seen = self._seen(key, Path(local).read_bytes())
        Path(local).write_bytes(seen)
        return digest_of(seen)

    def _seen(self, key: str, data: bytes) -> bytes:
        if key not in self.spoiled or not data:
            return data
        self.read_so_far[key] += 1
        is_bad = self.read_so_far[key] <= self.bad_reads
        return data[:-1] + bytes([data[-1] ^ 1]) if is_bad else data


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(str(tmp_path), "run")


@pytest.mark.promise("one-bad-read")
@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "manifest.json"])
def test_a_resume_takes_the_newest_checkpoint_after_one_bad_read_of_it(
    folder: RunFolder, tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    undisturbed = RunFolder(str(tmp_path), "undisturbed")
    for one in (undisturbed, folder):
        alone.run(one, epochs=2)
    newest = folder.checkpoints()[-1]
    folder.store = SpoiledReads(folder.url)
    SpoiledReads.spoil(f"{newest.key}/{name}")
    for one in (undisturbed, folder):
        alone.run(one, attempt=2, epochs=3)
    assert folder.quarantined() == {}
    assert f"{newest.name}/{name} {READ_TWICE}" in caplog.text
    assert digest_of_training(folder) == digest_of_training(undisturbed)


def test_two_bad_reads_are_damage(folder: RunFolder) -> None:
    alone.run(folder, epochs=2)
    newest = folder.checkpoints()[-1]
    folder.store = SpoiledReads(folder.url)
    SpoiledReads.spoil(f"{newest.key}/model.safetensors", bad_reads=2)
    alone.run(folder, attempt=2, epochs=2)
    assert folder.quarantined().keys() == {str(newest.name)}


def read(store: Store, entry: FileEntry, _: Path) -> bytes:
    return bytes(read_file(store, "file", entry))


def downloaded(store: Store, entry: FileEntry, there: Path) -> bytes:
    download_file(store, "file", entry, there / "local")
    return (there / "local").read_bytes()


def copied(store: Store, entry: FileEntry, _: Path) -> bytes:
    # The copy is what is read.
    copy_file(store, "file", store, "copies/file", entry)
    return Path(store.url, "copies/file").read_bytes()


def checked(store: Store, entry: FileEntry, _: Path) -> bytes:
    if fault := fault_of(store, "file", entry):
        raise CheckpointError(fault)
    return b"content"


@pytest.mark.parametrize("verified", [read, downloaded, copied, checked])
def test_whatever_verifies_a_file_reads_it_twice_before_it_calls_it_damaged(
    tmp_path: Path, verified: Callable[[Store, FileEntry, Path], bytes]
) -> None:
    store = SpoiledReads(str(tmp_path / "storage"))
    entry = write_file(store, "file", memoryview(b"content"))
    SpoiledReads.spoil("file", "copies/file")
    assert verified(store, entry, tmp_path) == b"content"
    SpoiledReads.spoil("file", "copies/file", bad_reads=9)
    with pytest.raises(CheckpointError):
        verified(store, entry, tmp_path)
    assert set(SpoiledReads.read_so_far.values()) == {2}


@pytest.mark.promise("one-bad-read")
def test_verify_lifts_a_quarantine_if_every_byte_is_good_now(
    folder: RunFolder, capsys: pytest.CaptureFixture[str]
) -> None:
    alone.run(folder, epochs=2)
    newest = folder.checkpoints()[-1]
    quarantine(folder, newest.name, "the cable was loose")
    # What has begun since knows that it may count again.
    begin_attempt(folder).release()
    begin_attempt(folder).release()
    assert newest.name not in [one.name for one in folder.checkpoints()]
    assert main(["verify", folder.url]) == 0
    told = capsys.readouterr().out
    assert "good again: its quarantine is lifted (it was: the cable was loose)" in " ".join(
        told.split()
    )
    assert folder.quarantined() == {}
    assert folder.checkpoints()[-1].name == newest.name
    main(["verify", folder.url])
    assert "lifted" not in capsys.readouterr().out


@pytest.mark.parametrize("file", ["model.safetensors", "manifest.json", None])
def test_verify_lifts_no_quarantine_of_what_is_damaged(folder: RunFolder, file: str | None) -> None:
    alone.run(folder, epochs=2)
    newest = folder.checkpoints()[-1]
    key = f"{newest.key}/{file}" if file else f"journal/{newest.manifest.journal[0].name}"
    data = folder.store.read(key)
    folder.store.write(key, data[:-1] + bytes([data[-1] ^ 1]))
    quarantine(folder, newest.name, "a flipped bit")
    (found,) = [one for one in verify_run(folder) if one.what == str(newest.name)]
    assert found.faults == ["quarantined: a flipped bit"]
    assert folder.quarantined().keys() == {str(newest.name)}


def write_committed(folder: RunFolder, name: CheckpointName) -> None:
    """Write a checkpoint that is what its manifest says."""
    key = f"checkpoints/{name}"
    file = write_file(folder.store, f"{key}/state.json", memoryview(b"{}"))
    listed = manifest(name.step, name.attempt).model_copy(update={"files": (file,)})
    folder.store.write(f"{key}/manifest.json", listed.to_json())


def test_verify_lifts_no_quarantine_of_what_a_later_attempt_began_without(
    folder: RunFolder,
) -> None:
    begin_attempt(folder).release()
    begin_attempt(folder).release()
    # As a driver of attempt 1 commits that does not know of the second one.
    late = CheckpointName(4, 1)
    write_committed(folder, late)
    assert late in folder.scan().late
    quarantine(folder, late, "a flipped bit")
    (found,) = [one for one in verify_run(folder) if one.what == str(late)]
    assert found.quarantined is None
    assert "quarantined: a flipped bit" in found.faults[0]
    assert folder.quarantined().keys() == {str(late)}


def test_the_reading_once_more_leaves_out_what_the_system_has_cached(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """What is kept of a file in memory is read from the disk again: here it is looked at."""
    store, calls = Store(str(tmp_path)), []

    class Watched(type(store._backend)):  # type: ignore[misc]
        def drop_caches(self, path: str, root: str | None) -> None:
            calls.append(path)
            super().drop_caches(path, root)

    store._backend.__class__ = Watched
    entry = write_file(store, "file", memoryview(b"content" * 4096))
    wrong = entry.model_copy(update={"digest": "0" * 64})
    caplog.set_level(logging.WARNING)
    with pytest.raises(CheckpointError):
        read_file(store, "file", wrong)
    assert calls == [f"{tmp_path}/file"]
    assert READ_TWICE not in caplog.text
