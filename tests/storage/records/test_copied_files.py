"""A committed file is copied to this machine's disk verified, and in bounded memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from train_core.errors import CheckpointError
from train_core.storage.objects.store import Store
from train_core.storage.records.manifest import FileEntry
from train_core.storage.records.verified_files import download_file

ROOT = Path(__file__).parents[3]
COPY = """
import sys
from tests.ranks.peak_memory import memory_bytes
from train_core.storage.objects.store import Store
from train_core.storage.records.manifest import FileEntry
from train_core.storage.records.verified_files import download_file
store, size_bytes, digest = Store(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
# What is loaded when it is first used is loaded now.
store.write("small", b"small")
download_file(store, "small", FileEntry.of("small", b"small"), sys.argv[4])
before = memory_bytes("VmRSS")
entry = FileEntry(name="large", size_bytes=size_bytes, digest=digest)
download_file(store, "large", entry, sys.argv[4])
print(memory_bytes("VmHWM") - before)
"""


def test_a_large_file_takes_little_memory(storage_url: str, tmp_path: Path) -> None:
    store = Store(storage_url)
    # On S3 sixteen parts of 8 MiB may be under way, each once more in its client.
    size_bytes = (96 if store.is_local else 256) * 2**20
    most_bytes = 32 * 2**20 if store.is_local else size_bytes
    (tmp_path / "large").write_bytes(os.urandom(2**20) * (size_bytes // 2**20))
    store.upload(tmp_path / "large", "large")
    target, digest = tmp_path / "target", store.digest("large", size_bytes)
    command = [sys.executable, "-c", COPY, storage_url, str(size_bytes), digest, str(target)]
    shown = subprocess.check_output(command, cwd=ROOT, text=True, timeout=100)
    assert int(shown) < most_bytes
    assert target.read_bytes() == (tmp_path / "large").read_bytes()


def test_a_file_that_is_not_what_was_committed_is_refused(storage_url: str, tmp_path: Path) -> None:
    store = Store(storage_url)
    entry = FileEntry.of("file", b"committed")
    with pytest.raises(CheckpointError, match="file is missing"):
        download_file(store, "file", entry, tmp_path / "target")
    store.write("file", b"c0mmitted")
    with pytest.raises(CheckpointError, match="has a digest that is not the committed one"):
        download_file(store, "file", entry, tmp_path / "target")
    store.write("file", b"cut")
    with pytest.raises(CheckpointError, match="has 3 bytes, 9 were committed"):
        download_file(store, "file", entry, tmp_path / "target")
    store.write("file", b"committed")
    download_file(store, "file", entry, tmp_path / "target")
    assert (tmp_path / "target").read_bytes() == b"committed"
