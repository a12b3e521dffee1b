"""A checkpoint as Ray Train's, and back."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest
from pyarrow.fs import FSSpecHandler, LocalFileSystem, PyFileSystem, SubTreeFileSystem
from ray.train import Checkpoint as RayCheckpoint

from tests import commands
from tests.client.grown import contents, create, grow
from train_core import Checkpoint
from train_core.errors import ConfigError
from train_core.functions.ray_checkpoints import address_of
from train_core.storage.objects.store import Store


@pytest.fixture
def checkpoint(storage_url: str) -> Checkpoint:
    folder = create(storage_url)
    return Checkpoint.in_run(folder, grow(folder, 2, 0.5))


@pytest.mark.promise("results-ray")
def test_ray_reads_the_files_and_they_are_opened_again(checkpoint: Checkpoint) -> None:
    of_ray = pickle.loads(pickle.dumps(checkpoint.to_ray()))
    assert isinstance(of_ray, RayCheckpoint)
    with of_ray.as_directory() as path:
        for name, data in contents(2).items():
            assert Path(path, name).read_bytes() == data
    again = Checkpoint.from_ray(of_ray)
    assert (again.step, again.metrics) == (checkpoint.step, checkpoint.metrics)
    with again.as_directory() as found:
        assert (found / "state.json").read_bytes() == b"{}"


def test_a_copy_goes_to_ray_and_back(tmp_path: Path) -> None:
    folder = create(str(tmp_path))
    copy = Checkpoint.in_run(folder, grow(folder, 2, 0.5)).to_directory(tmp_path / "copy")
    of_ray = Checkpoint.from_directory(copy).to_ray()
    assert of_ray.path == str(copy)
    assert Checkpoint.from_ray(of_ray).uri == str(copy)
    assert Checkpoint.from_ray(RayCheckpoint.from_directory(copy)).uri == str(copy)


def test_the_address_is_known_by_the_filesystem(tmp_path: Path) -> None:
    local, fsspec = LocalFileSystem(), PyFileSystem(FSSpecHandler(Store(str(tmp_path)).fs))
    assert address_of(RayCheckpoint("/runs/a", local)) == "/runs/a"
    assert address_of(RayCheckpoint("/runs/a", fsspec)) == "file:///runs/a"
    with pytest.raises(ConfigError, match=r"'a' on a filesystem of type 'subtree' is not known"):
        address_of(RayCheckpoint("a", SubTreeFileSystem("/runs", local)))


def test_a_folder_that_has_no_manifest_is_no_checkpoint_of_a_run(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it has no manifest\.json"):
        Checkpoint.from_ray(RayCheckpoint.from_directory(tmp_path))


def test_looking_at_results_loads_neither_ray_nor_torch(tmp_path: Path) -> None:
    grow(create(str(tmp_path)), 2, 0.5)
    code = """
import sys
from train_core import open_run
run = open_run(sys.argv[1])
assert run.metrics.shape == (2, 2)
with run.best().as_directory() as path:
    assert (path / "state.json").exists()
assert not {"torch", "ray", "mlflow", "prefect"} & set(sys.modules)
"""
    command = [sys.executable, "-c", code, str(tmp_path / "digits")]
    commands.succeed(command)
