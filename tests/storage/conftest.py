from __future__ import annotations

import uuid
from pathlib import Path

import pytest

from tests.storage.faulty_store import FaultyStore
from train_core.storage.store import Store

STORES = ["disk", "double", pytest.param("s3", marks=pytest.mark.s3)]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """A folder on a disk, on the tests' double of a storage, on a real S3 server."""
    if request.param == "s3":
        return Store(f"{request.getfixturevalue('object_store')}/{uuid.uuid4().hex}")
    url = str(tmp_path / "storage")
    return Store(url) if request.param == "disk" else FaultyStore(url, tmp_path / "notes")
