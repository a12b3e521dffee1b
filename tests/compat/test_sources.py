"""Where a reported folder is read, and what becomes of it."""

from __future__ import annotations

from pathlib import Path

import pyarrow.fs
import pytest
from ray.train import Checkpoint

from tests.storage.doubles.faulty_store import FaultyStore
from train_core.errors import WorkloadError
from train_core.functions.ray_checkpoints import filesystem_of
from train_core.functions.reports.reported_files import FolderInRun, LocalFolder
from train_core.functions.reports.reported_folder import FolderSource, RunPlaces
from train_core.storage.objects.digest_algorithm import digest_of
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt

FILES = {"weights.bin": b"weights", "deep/er/a b.bin": b"", "manifest.json": b"{}"}


def test_a_folder_in_the_run_is_copied_on_the_storages_side_and_read_once(
    storage_url: str, tmp_path: Path
) -> None:
    folder = RunFolder(storage_url, "run")
    folder.store = store = FaultyStore(folder.url, tmp_path / "notes")
    for name, data in FILES.items():
        store.write(f"work/{name}", data)
    found = FolderInRun(folder, "work")
    assert found.names() == sorted(FILES)
    for name, data in FILES.items():
        before = len(store.everything)
        entry = found.store(RunWriter(folder, 1), name, f"checkpoints/c/files/{name}")
        assert (entry.size_bytes, entry.digest) == (len(data), digest_of(data))
        made = store.everything[before:]
        assert set(made) == {"copy", "size_bytes", "digest"}
        assert made.count("digest") == 1
        assert store.read(f"checkpoints/c/files/{name}") == data


def test_a_folder_in_the_run_without_a_file_is_none(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    with pytest.raises(WorkloadError, match="there is no file in it"):
        FolderInRun(folder, "work").names()
    folder.store.write("work/new\nline", b"")
    with pytest.raises(WorkloadError, match="cannot be a checkpoint"):
        FolderInRun(folder, "work").names()


@pytest.mark.parametrize("is_moved", [True, False])
@pytest.mark.parametrize("place", ["run", "elsewhere"])
def test_what_lies_in_the_run_on_an_object_store_is_downloaded_only_where_it_is_not_moved(
    place: str, is_moved: bool
) -> None:
    # Another folder for each case: the filesystem is one for the whole process.
    run = RunFolder(f"memory://{place}-{is_moved}", "run")
    held = begin_attempt(run)
    filesystem = filesystem_of(run.store)
    assert filesystem is not None
    above = run.store if place == "run" else RunFolder(run.storage, "elsewhere").store
    above.write("work/weights.bin", b"weights")
    places = RunPlaces(
        RunWriter(run, held.attempt), filesystem, run.store.path(""), Path("/nowhere")
    )
    source = FolderSource(
        Checkpoint(above.path("work"), filesystem),
        places,
        upload=None,
        name="",
        is_moved=is_moved,
        is_deleted=False,
    )
    with source.opened() as found:
        is_in_place = place == "run" and is_moved
        assert isinstance(found, FolderInRun if is_in_place else LocalFolder)
        found.store(RunWriter(run, held.attempt), "weights.bin", "checkpoints/c/weights.bin")
    source.clean_up()
    assert run.store.read("checkpoints/c/weights.bin") == b"weights"
    assert above.exists("work/weights.bin") != is_in_place
    held.release()


def test_a_folder_on_the_disk_of_the_run_is_read_from_there(tmp_path: Path) -> None:
    run = RunFolder(str(tmp_path), "run")
    run.store.write("work/weights.bin", b"weights")
    disk = pyarrow.fs.LocalFileSystem()
    places = RunPlaces(RunWriter(run, 1), disk, run.store.path(""), Path("/nowhere"))
    source = FolderSource(
        Checkpoint(run.store.path("work"), disk),
        places,
        upload=None,
        name="",
        is_moved=True,
        is_deleted=False,
    )
    with source.opened() as found:
        assert found == LocalFolder(Path(run.store.path("work")))
