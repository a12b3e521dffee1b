from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.commands import said_by
from tests.storage.coordination.test_lease import driver_of
from tests.storage.samples import commit, manifest, save
from train_core.errors import FencedError, StorageError
from train_core.storage.cleanup.orphans import (
    collect_orphans,
    delete_orphans,
    delete_orphans_of_the_dead,
    find_orphans,
)
from train_core.storage.coordination.holder import Holder
from train_core.storage.coordination.pins import pin, pinned
from train_core.storage.objects.backends import disk_files
from train_core.storage.objects.store import Store
from train_core.storage.records.manifest import CheckpointManifest, FileEntry
from train_core.storage.records.names import CheckpointName
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt, quarantine
from train_core.storage.verification.checkpoints import faults

COVERED = "steps-00000001-00000001-a0001.jsonl"
UNCOVERED = "steps-00000002-00000003-a0001.jsonl"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(str(tmp_path), "run")


@pytest.fixture
def any_folder(storage_url: str) -> RunFolder:
    """On a disk, then on S3: for what depends on the storage."""
    return RunFolder(storage_url, "run")


def left_by_a_dead_attempt(folder: RunFolder) -> CheckpointName:
    """A commit with its segment; what was written for the next one, which did not come."""
    begin_attempt(folder).release()
    folder.store.write(f"journal/{COVERED}", b"{}\n")
    committed = commit(folder, 1, attempt=1)
    save(folder, 3, attempt=1)
    folder.store.write(f"journal/{UNCOVERED}", b"{}\n")
    return committed


def keys(folder: RunFolder) -> list[str]:
    return [
        f"{above}/{name}"
        for above in ("checkpoints", "journal", "pins")
        for name in folder.store.names(above)
    ]


@pytest.mark.promise("leftovers")
def test_what_no_commit_counts_is_deleted_by_the_next_attempt(any_folder: RunFolder) -> None:
    committed = left_by_a_dead_attempt(any_folder)
    held = begin_attempt(any_folder)
    delete_orphans_of_the_dead(RunWriter(any_folder, held.attempt))
    assert keys(any_folder) == [f"checkpoints/{committed}", f"journal/{COVERED}"]
    assert faults(any_folder, any_folder.checkpoint(committed)) == []
    assert collect_orphans(RunWriter(any_folder, held.attempt)) == []


def test_an_attempts_own_unfinished_things_stay(folder: RunFolder) -> None:
    left_by_a_dead_attempt(folder)
    before = keys(folder)
    assert find_orphans(folder, attempt=1) == []
    delete_orphans_of_the_dead(RunWriter(folder, 1))
    assert keys(folder) == before


def test_what_a_living_process_writes_stays_until_it_is_dead(folder: RunFolder) -> None:
    with driver_of(folder) as process:
        assert said_by(process) == "1"
        unfinished = save(folder, 3, attempt=1)
        folder.store.write(f"journal/{UNCOVERED}", b"{}\n")
        # Also for one who took the run though the holder lives.
        folder.store.create("lease/0002.json", Holder.here().model_dump_json().encode())
        assert collect_orphans(RunWriter(folder, 2)) == []
        process.kill()
        process.wait()
    assert [one.key for one in collect_orphans(RunWriter(folder, 2))] == [
        f"checkpoints/{unfinished}",
        f"journal/{UNCOVERED}",
    ]


def test_a_driver_elsewhere_is_dead_once_it_was_replaced(folder: RunFolder) -> None:
    holder = Holder(host="far", machine="another", pid=1, process_started=0.0, token="t")
    folder.store.create("lease/0001.json", holder.model_dump_json().encode())
    save(folder, 3, attempt=1)
    # Nobody has followed it yet, so it may live.
    assert find_orphans(folder, attempt=2) == []
    folder.store.create("lease/0002.json", Holder.here().model_dump_json().encode())
    assert [one.key for one in find_orphans(folder, attempt=2)] == [
        "checkpoints/step-00000003-a0001"
    ]


def test_an_empty_folder_of_a_dead_attempt_goes(folder: RunFolder) -> None:
    begin_attempt(folder).release()
    local = f"{folder.url}/checkpoints"
    subprocess.run(["mkdir", "-p", f"{local}/step-00000003-a0001", f"{local}/notes"], check=True)
    held = begin_attempt(folder)
    delete_orphans_of_the_dead(RunWriter(folder, held.attempt))
    assert folder.store.names("checkpoints") == ["notes"]


@pytest.mark.promise("leftovers")
def test_quarantined_checkpoints_and_their_segments_stay(folder: RunFolder) -> None:
    left_by_a_dead_attempt(folder)
    segment = FileEntry.of(UNCOVERED, b"{}\n")
    bad = save(folder, 4, attempt=1)
    listing = manifest(4, 1).model_copy(update={"journal": (segment,)})
    RunWriter(folder, 1).commit(listing)
    quarantine(folder, bad, "a flipped byte")
    half = save(folder, 5, attempt=1)
    quarantine(folder, half, "looked at by somebody")
    held = begin_attempt(folder)
    delete_orphans_of_the_dead(RunWriter(folder, held.attempt))
    assert list(folder.quarantined()) == [str(bad), str(half)]
    assert folder.store.names("journal") == [COVERED, UNCOVERED]
    assert not folder.store.exists("checkpoints/step-00000003-a0001")


def test_beside_a_manifest_that_cannot_be_read_every_segment_stays(folder: RunFolder) -> None:
    left_by_a_dead_attempt(folder)
    torn = save(folder, 4, attempt=1)
    folder.store.write(f"checkpoints/{torn}/manifest.json", manifest(4, 1).to_json()[:-9])
    held = begin_attempt(folder)
    delete_orphans_of_the_dead(RunWriter(folder, held.attempt))
    assert folder.store.names("journal") == [COVERED, UNCOVERED]
    assert not folder.store.exists("checkpoints/step-00000003-a0001")


@pytest.mark.promise("leftovers")
def test_a_late_commit_is_left_for_prune_with_its_segment(any_folder: RunFolder) -> None:
    left_by_a_dead_attempt(any_folder)
    begin_attempt(any_folder).release()
    late = save(any_folder, 9, attempt=1)
    segment = FileEntry.of(UNCOVERED, b"{}\n")
    listing: CheckpointManifest = manifest(9, 1).model_copy(update={"journal": (segment,)})
    any_folder.store.create(f"checkpoints/{late}/manifest.json", listing.to_json())
    held = begin_attempt(any_folder)
    delete_orphans_of_the_dead(RunWriter(any_folder, held.attempt))
    assert any_folder.store.exists(f"checkpoints/{late}/manifest.json")
    assert any_folder.store.names("journal") == [COVERED, UNCOVERED]
    found = find_orphans(any_folder, held.attempt)
    assert [one.key for one in found] == [f"checkpoints/{late}", f"journal/{UNCOVERED}"]
    assert "attempt 3 had the run already" in found[0].why
    delete_orphans(RunWriter(any_folder, held.attempt), found)
    assert not any_folder.store.names(f"checkpoints/{late}")
    assert any_folder.store.names("journal") == [COVERED]


def test_segments_of_a_checkpoint_that_goes_are_orphans_with_it(folder: RunFolder) -> None:
    committed = left_by_a_dead_attempt(folder)
    held = begin_attempt(folder)
    collect_orphans(RunWriter(folder, held.attempt))
    found = find_orphans(folder, held.attempt, gone=[str(committed)])
    assert [one.key for one in found] == [f"journal/{COVERED}"]


def test_a_replaced_attempt_collects_nothing(folder: RunFolder) -> None:
    left_by_a_dead_attempt(folder)
    before = keys(folder)
    begin_attempt(folder).release()
    begin_attempt(folder)
    with pytest.raises(FencedError):
        delete_orphans_of_the_dead(RunWriter(folder, 2))
    assert keys(folder) == before


def test_pins_of_the_dead_and_of_deleted_checkpoints_are_swept(folder: RunFolder) -> None:
    committed = left_by_a_dead_attempt(folder)
    lasting = pin(folder.store, committed, "me", "I look at it", is_lasting=True)
    dead = (
        Holder.here().model_copy(update={"process_started": 1.0, "process_start": ""}).model_dump()
    )
    content = {"why": "infer", "created_at": "2026-01-01T00:00:00Z", "holder": dead}
    folder.store.write(f"pins/{committed}/infer-1.json", json.dumps(content).encode())
    folder.store.write("pins/step-00000077-a0001/infer-1.json", b"of a checkpoint that is gone")
    delete_orphans_of_the_dead(RunWriter(folder, begin_attempt(folder).attempt))
    assert folder.store.names("pins") == [str(committed)]
    assert folder.store.names(f"pins/{committed}") == [lasting.rpartition("/")[2]]


class ListsNoJournal(Store):
    def names(self, key: str = "") -> list[str]:
        if key == "journal":
            raise StorageError(f"cannot list {self.uri(key)}: 503")
        return super().names(key)


def test_a_storage_that_fails_leaves_all_to_the_next_attempt(
    folder: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    left_by_a_dead_attempt(folder)
    before = keys(folder)
    held = begin_attempt(folder)
    whole = folder.store
    folder.store = ListsNoJournal(folder.url)
    delete_orphans_of_the_dead(RunWriter(folder, held.attempt))
    assert keys(RunFolder(folder.storage, "run")) == before
    assert "503" in caplog.text
    folder.store = whole
    delete_orphans_of_the_dead(RunWriter(folder, held.attempt))
    assert len(keys(folder)) == 2


def test_results_without_a_manifest_are_deleted_once_nobody_works_on_them(
    any_folder: RunFolder,
) -> None:
    begin_attempt(any_folder).release()
    name = commit(any_folder, 1, attempt=1)
    whole = [f"predictions/{name}-0a1b2c3d", f"evaluations/{name}/test-0a1b2c3d"]
    half = [f"predictions/{name}-4e5f6a7b", f"evaluations/{name}/test-4e5f6a7b"]
    for key in (*whole, *half):
        any_folder.store.write(f"{key}/part", b"rows")
    for key in whole:
        any_folder.store.write(f"{key}/manifest.json", b"{}")
    # A model in MLflow keeps the checkpoint, and no result of it.
    pin(any_folder.store, name, "mlflow-model", "a model", is_lasting=True)
    held = begin_attempt(any_folder)
    with pinned(any_folder.store, [name], "infer"):
        assert collect_orphans(RunWriter(any_folder, held.attempt)) == []
    assert [orphan.key for orphan in collect_orphans(RunWriter(any_folder, held.attempt))] == half
    assert all(any_folder.store.exists(f"{key}/part") for key in whole)
    assert not any(any_folder.store.exists(f"{key}/part") for key in half)


WRITER = """
import os, signal, sys
from train_core.storage.objects.backends import disk_files
from train_core.storage.run_writer import begin_attempt
with disk_files.temporary_beside(sys.argv[1]) as temporary:
    disk_files.write_new(temporary, b"half", durable=False)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_temporary_files_of_killed_processes_are_deleted(folder: RunFolder) -> None:
    held = begin_attempt(folder)
    place = Path(folder.url) / "checkpoints/step-00000001-a0001"
    subprocess.run([sys.executable, "-c", WRITER, str(place / "model")], check=False)
    (killed,) = place.iterdir()
    with disk_files.temporary_beside(str(place / "state")) as ours:
        Path(ours).write_bytes(b"half")
        # It may be of another machine, where its writer lives.
        folder.store.sweep()
        assert killed.exists()
        # No process has such a number.
        impossible = place / ".tmp-99999999999999999999-0a1b"
        impossible.touch()
        for path in (killed, impossible, Path(ours)):
            os.utime(path, (0, 0))
        collect_orphans(RunWriter(folder, held.attempt))
        assert list(place.iterdir()) == [Path(ours)]


def test_a_clock_that_is_ahead_of_the_disks_server_deletes_no_file_that_is_being_written(
    folder: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files' times are the server's of a shared disk; this machine's clock is another."""
    place = Path(folder.url) / "checkpoints/step-00000001-a0001"
    place.mkdir(parents=True)
    # Of another machine: no process here has such a number.
    written = place / ".tmp-99999999999999999999-0a1b"
    written.touch()
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 3600)
    folder.store.sweep()
    assert written.exists()
