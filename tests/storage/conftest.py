from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.storage.doubles.faulty_store import FaultyStore
from train_core.storage.objects.store import Store

STORES = ["disk", "double", pytest.param("s3", marks=pytest.mark.s3)]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A folder on a disk, on the tests' double of a storage, on a real S3 server."""
    if request.param == "s3":
        return Store(f"{request.getfixturevalue('object_store')}/{uuid.uuid4().hex}")
    url = str(tmp_path / "storage")
    return Store(url) if request.param == "disk" else FaultyStore(url, tmp_path / "notes")


@pytest.fixture
def other_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on another filesystem than tmp_path's."""
    if not os.path.isdir("/dev/shm") or os.stat("/dev/shm").st_dev == tmp_path.stat().st_dev:
        pytest.skip("no second filesystem at /dev/shm")
    folder = tempfile.mkdtemp(dir="/dev/shm")
    yield Path(folder)
    shutil.rmtree(folder)
