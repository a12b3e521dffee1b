"""A checkpoint's files in a local folder: verified, kept while they are read, copied out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.client.grown import commit, contents, create, grow
from tests.storage.doubles.faulty_store import FaultyStore
from train_core import Checkpoint, Run
from train_core.config import TrainConfig
from train_core.errors import CheckpointError, ConfigError
from train_core.storage.cleanup.retention_after_commit import delete_superseded
from train_core.storage.coordination import pins
from train_core.storage.objects.store import Store
from train_core.storage.records.manifest import FileEntry
from train_core.storage.records.names import CheckpointName
from train_core.storage.run_writer import RunWriter, quarantine

KEPT = TrainConfig(keep_last=1, keep_best=1)


@pytest.fixture
def run(storage_url: str) -> Run:
    """Of its two checkpoints the rules of KEPT keep the second."""
    folder = create(storage_url)
    for step, accuracy in ((2, 0.5), (4, 0.75)):
        grow(folder, step, accuracy)
    return Run(folder)


@pytest.fixture
def local(tmp_path: Path) -> Checkpoint:
    """A checkpoint on a disk."""
    folder = create(str(tmp_path / "runs"))
    return Checkpoint.in_run(folder, grow(folder, 2, 0.5))


def read_all(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def with_manifest(checkpoint: Checkpoint) -> dict[str, bytes]:
    return contents(checkpoint.step) | {
        "manifest.json": Store(checkpoint.uri).read("manifest.json")
    }


@pytest.mark.promise("results-files")
def test_its_files_are_in_a_local_folder_while_the_block_runs(run: Run) -> None:
    first = run.checkpoints[0]
    with first.as_directory() as path:
        assert path.name == first.name
        assert read_all(path) == with_manifest(first)
    # On a disk they are read where they lie, and stay.
    assert path.exists() == run.folder.store.is_local
    assert (str(path) == first.uri) == run.folder.store.is_local
    assert pins.valid_pins(run.folder.store) == []


@pytest.mark.promise("results-files")
def test_retention_deletes_nothing_that_is_read(run: Run) -> None:
    first, second = run.checkpoints
    with first.as_directory() as path:
        delete_superseded(RunWriter(run.folder, 1), KEPT)
        assert [one.step for one in run.checkpoints] == [2, 4]
        assert read_all(path) == with_manifest(first)
    delete_superseded(RunWriter(run.folder, 1), KEPT)
    assert [one.step for one in run.checkpoints] == [second.step]
    with pytest.raises(CheckpointError, match="its run has deleted it"), first.as_directory():
        pass


def test_an_error_of_the_block_is_raised_and_the_checkpoint_let_go(run: Run) -> None:
    with pytest.raises(InterruptedError), run.latest().as_directory() as path:
        raise InterruptedError
    assert path.exists() == run.folder.store.is_local
    assert pins.valid_pins(run.folder.store) == []


def test_what_may_not_be_written_is_read_without_a_pin(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = create(str(tmp_path / "runs"))
    committed = grow(folder, 2, 0.5)
    store = FaultyStore(folder.url, tmp_path / "notes")
    store.fail_at(1, kind="write", times=None)
    folder.store = store
    with Checkpoint.in_run(folder, committed).as_directory() as path:
        assert read_all(path).keys() == {*contents(2), "manifest.json"}
    assert "is read without a pin" in caplog.text


def flip(store: Store, key: str) -> None:
    data = store.read(key)
    store.write(key, bytes([data[0] ^ 1]) + data[1:])


def cut(store: Store, key: str) -> None:
    store.write(key, store.read(key)[:-1])


def take_away(store: Store, key: str) -> None:
    store.delete(key)


@pytest.mark.promise("results-files")
@pytest.mark.parametrize("damage", [flip, cut, take_away])
def test_a_damaged_file_is_refused_by_name(
    damage: Callable[[Store, str], None], run: Run, tmp_path: Path
) -> None:
    latest = run.latest()
    damage(Store(latest.uri), "state.json")
    with pytest.raises(CheckpointError, match=f"{latest.name}/state.json"), latest.as_directory():
        pass
    with pytest.raises(CheckpointError, match=f"{latest.name}/state.json"):
        latest.to_directory(tmp_path / "copy")
    # Nothing of it is left.
    assert [path.name for path in tmp_path.iterdir()] in ([], ["storage"])
    assert pins.valid_pins(run.folder.store) == []


def test_a_file_that_a_link_leads_to_is_refused(local: Checkpoint) -> None:
    file = Path(local.uri, "state.json")
    file.rename(file.with_name("elsewhere"))
    file.symlink_to("elsewhere")
    with pytest.raises(CheckpointError, match="is reached by the link"), local.as_directory():
        pass


@pytest.mark.promise("results-copies")
def test_a_copy_is_whole_and_opened_again(run: Run, tmp_path: Path) -> None:
    latest = run.latest()
    copy = latest.to_directory(tmp_path / "copies" / "champion")
    assert copy == tmp_path / "copies" / "champion"
    assert read_all(copy) == with_manifest(latest)
    assert [path.name for path in copy.parent.iterdir()] == ["champion"]
    RunWriter(run.folder, 1).delete_run()

    again = Checkpoint.from_directory(copy)
    assert (again.name, again.step, again.metrics) == (latest.name, 4, latest.metrics)
    assert again.uri == str(copy)
    with again.as_directory() as path:
        assert path == copy
    moved = again.to_directory(tmp_path / "moved")
    assert read_all(moved) == read_all(copy)


def test_a_copy_is_written_into_a_folder_that_is_empty(local: Checkpoint, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "link").symlink_to("empty")
    assert local.to_directory(tmp_path / "link") == tmp_path / "empty"
    assert read_all(tmp_path / "empty") == with_manifest(local)
    assert os.stat(tmp_path / "empty").st_mode == os.stat(tmp_path / "runs").st_mode
    file = tmp_path / "file"
    file.touch()
    for there in (tmp_path / "empty", file):
        with pytest.raises(ConfigError, match="is there already: give the path of an empty"):
            local.to_directory(there)
    with pytest.raises(ConfigError, match="is a URL: give the path of a folder of this machine"):
        local.to_directory("s3://bucket/copy")


@pytest.mark.promise("results-copies")
@pytest.mark.parametrize("damage", [flip, cut, take_away])
def test_a_copy_that_was_damaged_is_refused(
    damage: Callable[[Store, str], None], local: Checkpoint, tmp_path: Path
) -> None:
    copy = local.to_directory(tmp_path / "copy")
    damage(Store(str(copy)), "model.safetensors")
    opened = Checkpoint.from_directory(copy)
    with pytest.raises(CheckpointError, match=r"copy/model\.safetensors"), opened.as_directory():
        pass


def test_an_altered_manifest_is_refused(local: Checkpoint, tmp_path: Path) -> None:
    copy = local.to_directory(tmp_path / "copy")
    flip(Store(str(copy)), "manifest.json")
    with pytest.raises(CheckpointError, match=r"copy/manifest\.json"):
        Checkpoint.from_directory(copy)


def test_a_manifest_that_changes_after_it_was_read_is_noticed(
    local: Checkpoint, tmp_path: Path
) -> None:
    flip(Store(local.uri), "manifest.json")
    with pytest.raises(CheckpointError, match="was altered since it was opened"):
        local.to_directory(tmp_path / "copy")


def test_the_address_of_a_runs_checkpoint_opens_it_in_its_run(run: Run) -> None:
    first = run.checkpoints[0]
    opened = Checkpoint.from_directory(first.uri)
    assert repr(opened) == repr(first) == f"Checkpoint('{first.uri}')"
    with opened.as_directory():
        [pin] = pins.valid_pins(run.folder.store)
        assert pin.checkpoint == first.name


def test_what_is_no_checkpoint_is_refused(run: Run) -> None:
    for url in (run.url, f"{run.url}/journal", f"{run.url}/nowhere"):
        with pytest.raises(ConfigError, match=r"is not the folder of a checkpoint: it has no mani"):
            Checkpoint.from_directory(url)
    missing = f"{run.url}/checkpoints/{CheckpointName(9, 1)}"
    with pytest.raises(ConfigError, match="has no checkpoint step-00000009-a0001"):
        Checkpoint.from_directory(missing)
    quarantine(run.folder, run.latest().committed.name, "a flipped bit")
    with pytest.raises(ConfigError, match="that is good: a flipped bit"):
        Checkpoint.from_directory(f"{run.url}/checkpoints/{CheckpointName(4, 1)}")


def test_a_copy_whose_folder_is_a_link_is_opened(local: Checkpoint, tmp_path: Path) -> None:
    shutil.copytree(local.uri, tmp_path / "real")
    (tmp_path / "named").symlink_to("real")
    with Checkpoint.from_directory(tmp_path / "named").as_directory() as path:
        assert read_all(path) == with_manifest(local)


@pytest.fixture
def reported(storage_url: str) -> Checkpoint:
    """A folder that a training function reported, with a file in a folder, and a manifest.json."""
    folder = create(storage_url)
    files = {"model.safetensors": contents(2)["model.safetensors"], "sub/state.json": b"{}"}
    entries = [FileEntry.of(f"files/{name}", data) for name, data in files.items()]
    change = {"files": tuple(entries), "reported": {"name": "", "world_size": 2}}
    return Checkpoint.in_run(folder, grow(folder, 2, 0.5, **change))


def test_of_a_reported_folder_the_reader_gets_what_was_reported(
    reported: Checkpoint, tmp_path: Path
) -> None:
    expected = {"model.safetensors": contents(2)["model.safetensors"], "sub/state.json": b"{}"}
    with reported.as_directory() as path:
        assert read_all(path) == expected
    assert read_all(reported.to_directory(tmp_path / "copy")) == expected
    assert Checkpoint.from_directory(f"{reported.uri}/files").uri == reported.uri
    flip(Store(reported.uri), "files/sub/state.json")
    with pytest.raises(CheckpointError, match=r"files/sub/state\.json"), reported.as_directory():
        pass


def test_numbers_are_what_a_function_reported_also_those_of_a_nested_dict(storage_url: str) -> None:
    folder = create(storage_url)
    said = {"step": 3, "eval": {"seen": 7, "is_best": True, "loss": 0.5}}
    flat = {"step": 3.0, "eval/seen": 7.0, "eval/is_best": 1.0, "eval/loss": 0.5}
    reported = {"name": "", "world_size": 1, "metrics": said}
    all_of_it = Checkpoint.in_run(
        folder, commit(folder, 2, [], None, flat, reported=reported)
    ).metrics
    found = {name: value for name, value in all_of_it.items() if name in flat}
    assert found == flat
    kinds = {name: type(value) for name, value in found.items()}
    assert kinds == {"step": int, "eval/seen": int, "eval/is_best": bool, "eval/loss": float}


def test_a_reported_folder_without_files_is_an_empty_folder(storage_url: str) -> None:
    folder = create(storage_url)
    empty = {"files": (), "reported": {"name": "", "world_size": 1}}
    with Checkpoint.in_run(folder, grow(folder, 2, 0.5, **empty)).as_directory() as path:
        assert list(path.iterdir()) == []
