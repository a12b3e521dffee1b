"""What only an object store has: buckets, keys to it, parts."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import uuid

import pytest
import s3fs

from train_core.errors import StorageError
from train_core.storage.objects.store import Store

pytestmark = pytest.mark.s3

PROBE = """
import sys
from train_core.storage.objects.store import Store
try:
    Store(sys.argv[1]).probe()
except OSError as error:
    print(type(error).__name__, error)
"""


def probe_elsewhere(url: str, **environment: str) -> str:
    """What a probe says in a process with other settings."""
    return subprocess.check_output(
        [sys.executable, "-c", PROBE, url], env=os.environ | environment, text=True, timeout=60
    )


def test_a_missing_bucket_is_named(object_store: str) -> None:
    with pytest.raises(
        StorageError, match=r"cannot create s3://no-such-bucket/run/.*: its bucket does not exist"
    ):
        Store("s3://no-such-bucket/run").probe()


def test_a_wrong_key_is_refused_with_the_servers_answer(object_store: str) -> None:
    said = probe_elsewhere(object_store, AWS_SECRET_ACCESS_KEY="wrong")
    assert said.startswith("StorageError cannot create s3://")
    assert "PermissionError" in said


def test_keys_that_only_fsspec_knows_are_everybodys(object_store: str) -> None:
    known = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]
    given = {"FSSPEC_S3_KEY": known[0], "FSSPEC_S3_SECRET": known[1]}
    hidden = {"AWS_ACCESS_KEY_ID": "", "AWS_SECRET_ACCESS_KEY": ""}
    assert probe_elsewhere(object_store, **given, **hidden) == ""


def test_a_server_that_is_down_is_named_within_seconds(object_store: str) -> None:
    begin = time.monotonic()
    said = probe_elsewhere(object_store, AWS_ENDPOINT_URL="http://127.0.0.1:9")
    assert time.monotonic() - begin < 20  # ten, and what starting a process takes
    assert said.startswith("StorageError cannot create s3://")
    assert "http://127.0.0.1:9" in said


def test_an_object_that_marks_a_folder_is_not_in_it(object_store: str) -> None:
    store = Store(f"{object_store}/{uuid.uuid4().hex}")
    s3fs.S3FileSystem().pipe_file(store.path("folder") + "/", b"")
    store.write("folder/object", b"")
    assert store.names("folder") == ["object"]
    assert store.names() == ["folder"]


def test_a_large_object_is_copied_in_parts(object_store: str) -> None:
    store = Store(f"{object_store}/{uuid.uuid4().hex}")
    data = os.urandom(160 * 2**20)
    store.write("large", data)
    store.copy("large", store.child("below"), "copy")
    assert store.read("below/copy") == data
    # Its ETag says in how many parts it came: S3 takes no more than 5 GiB in one.
    assert store.fs.info(store.path("below/copy"))["ETag"].strip('"').endswith("-4")


def test_other_clients_of_the_process_keep_their_settings(object_store: str) -> None:
    Store(object_store).exists("object")
    assert s3fs.S3FileSystem().retries == s3fs.S3FileSystem.retries
    assert s3fs.S3FileSystem().config_kwargs == {}
