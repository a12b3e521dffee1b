"""Uploads in parts that a killed process left on S3 are ended, and those of the living are not."""

from __future__ import annotations

import logging
import math
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
import s3fs

from evertrain_flows.cli.app import main
from tests.storage.doubles.fault_proxy import Fault, FaultProxy, Kind
from tests.storage.samples import commit, record
from tests.waiting import wait_for
from train_core.policy.checkpoints.retention import RetentionRules
from train_core.storage.cleanup.orphans import (
    collect_orphans,
    delete_orphans_of_the_dead,
    delete_unfinished_results,
    find_orphans,
)
from train_core.storage.cleanup.prune import Pruning
from train_core.storage.coordination import lease
from train_core.storage.coordination.holder import Holder
from train_core.storage.coordination.pins import pin, pinned
from train_core.storage.objects.backends.s3 import S3Backend
from train_core.storage.objects.store import Store
from train_core.storage.objects.unfinished_uploads import Upload
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt, create_run
from train_core.storage.verification.checkpoints import file_faults

pytestmark = pytest.mark.s3

UNFINISHED = "checkpoints/step-00000003-a0001/model.safetensors"
WRITER = """
import sys
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import begin_attempt
folder = RunFolder.at(sys.argv[1])
begin_attempt(folder)
folder.store.put(sys.argv[2], memoryview(bytes(24 * 2**20)))
"""


@pytest.fixture
def folder(object_store: str) -> RunFolder:
    return RunFolder(f"{object_store}/{uuid.uuid4().hex}", "run")


def on_the_server(folder: RunFolder) -> list[str]:
    """The keys of the uploads that the server has, by a client of our own."""
    bucket, _, above = folder.store.path("").partition("/")
    found = s3fs.S3FileSystem().call_s3("list_multipart_uploads", Bucket=bucket, Prefix=above)
    return sorted(one["Key"].removeprefix(f"{above}/") for one in found.get("Uploads", []))


def begin_upload(folder: RunFolder, key: str) -> Upload:
    """As a process does that is killed then: one part is there."""
    bucket, _, name = folder.store.path(key).partition("/")
    ask = partial(s3fs.S3FileSystem().call_s3, Bucket=bucket, Key=name)
    upload_id = ask("create_multipart_upload")["UploadId"]
    ask("upload_part", UploadId=upload_id, PartNumber=1, Body=b"part")
    return Upload(key, upload_id)


@contextmanager
def uploading(folder: RunFolder) -> Iterator[subprocess.Popen[bytes]]:
    """A process that drives attempt 1, and has stored a part of three: the second never ends."""
    with FaultProxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        proxy.schedule.add(Fault(Kind.STALL_REQUEST, target="partNumber=2", times=math.inf))
        with subprocess.Popen(
            [sys.executable, "-c", WRITER, folder.url, UNFINISHED],
            env=os.environ | {"AWS_ENDPOINT_URL": proxy.url},
        ) as process:
            try:
                wait_for(lambda: proxy.schedule.hits, 60, ended=process.poll)
                yield process
            finally:
                process.kill()


def test_what_a_process_uploads_stays_until_it_is_killed_and_goes_then(folder: RunFolder) -> None:
    with uploading(folder) as process:
        assert on_the_server(folder) == [UNFINISHED]
        # Also for one who took the run though the holder lives.
        folder.store.create("lease/0002.json", Holder.here().model_dump_json().encode())
        assert collect_orphans(RunWriter(folder, 2)) == []
        assert on_the_server(folder) == [UNFINISHED]
        process.kill()
        process.wait()
        assert on_the_server(folder) == [UNFINISHED]
    # No object is there: nothing but the upload tells of it.
    assert folder.store.names("checkpoints") == []
    delete_orphans_of_the_dead(RunWriter(folder, 2))
    assert on_the_server(folder) == []
    assert folder.store.unfinished_uploads() == []


def test_an_attempt_ends_the_uploads_of_earlier_ones_and_no_others(folder: RunFolder) -> None:
    begin_attempt(folder).release()
    committed = commit(folder, 1, attempt=1)
    held = begin_attempt(folder)
    assert held.attempt == 2
    dead = [
        # One that failed, and was begun anew and committed.
        f"checkpoints/{committed}/model.safetensors",
        "checkpoints/step-00000003-a0001/optimizer.safetensors",
        "journal/steps-00000002-00000003-a0001.jsonl",
    ]
    others = [
        "checkpoints/notes/somebodys",
        "checkpoints/step-00000003-a0002/model.safetensors",
        "journal/steps-00000002-00000003-a0002.jsonl",
        "somebodys",
    ]
    neighbour = RunFolder(folder.storage, "run-2")
    uploads = [begin_upload(folder, key) for key in (*dead, *others)]
    begin_upload(neighbour, UNFINISHED)
    found = find_orphans(folder, held.attempt)
    assert sorted(one.upload.key for one in found if one.upload) == dead
    assert collect_orphans(RunWriter(folder, held.attempt)) == found
    assert sorted(one.key for one in folder.store.unfinished_uploads()) == others
    assert on_the_server(neighbour) == [UNFINISHED]
    assert file_faults(folder, folder.checkpoint(committed)) == []
    # Both may be asked to end it: it is gone, as it was to be.
    folder.store.abort(uploads[0])


def test_of_two_uploads_of_one_object_each_is_ended_by_its_own_name(folder: RunFolder) -> None:
    first, second = begin_upload(folder, UNFINISHED), begin_upload(folder, UNFINISHED)
    folder.store.abort(first)
    assert folder.store.unfinished_uploads() == [second]


def test_uploads_of_results_are_ended_once_nobody_works_on_them(folder: RunFolder) -> None:
    begin_attempt(folder).release()
    name = commit(folder, 1, attempt=1)
    # A model in MLflow keeps the checkpoint, and no result of it.
    pin(folder.store, name, "mlflow-model", "a model", is_lasting=True)
    keys = [f"evaluations/{name}/test-0a1b/metrics", f"predictions/{name}-0a1b/part-00000.parquet"]
    somebodys = "predictions/somebodys/part"
    begin_upload(folder, somebodys)
    for collect in (
        partial(collect_orphans, RunWriter(folder, begin_attempt(folder).attempt)),
        partial(delete_unfinished_results, folder),
    ):
        for key in keys:
            begin_upload(folder, key)
        with pinned(folder.store, [name], "infer"):
            collect()
            assert on_the_server(folder) == sorted([*keys, somebodys])
        collect()
        assert on_the_server(folder) == [somebodys]


class TwoAtATime(S3Backend):
    """Lists two uploads an answer, where S3 lists a thousand."""

    def ask(self, left_s: float, method: str, *args: object, **options: object) -> Any:
        if args[:1] == ("list_multipart_uploads",):
            options["MaxUploads"] = 2
        return super().ask(left_s, method, *args, **options)


def test_more_uploads_than_one_answer_holds_are_found(folder: RunFolder) -> None:
    # Several of one object: the next page begins between them.
    keys = [f"checkpoints/step-00000003-a0001/{name}" for name in "aaabc"]
    uploads = [begin_upload(folder, key) for key in keys]
    store = Store(folder.url)
    store._backend = TwoAtATime("s3", store.retry_policy)
    found = store.unfinished_uploads()
    assert len(found) == 5
    assert set(found) == set(uploads)


def test_a_prune_shows_and_ends_them_and_deleting_a_run_ends_all(folder: RunFolder) -> None:
    create_run(folder, record())
    begin_attempt(folder).release()
    commit(folder, 1, attempt=1)
    begin_upload(folder, UNFINISHED)
    begin_upload(folder, "somebodys")
    rules = RetentionRules(
        monitor="validation/accuracy", monitor_order="max", keep_last=1, keep_best=1
    )
    pruning = Pruning(folder, rules, datetime(2026, 1, 2, tzinfo=UTC), tuple)
    assert UNFINISHED in [one.name for one in pruning.survey(2) if one.kind == "orphan"]
    assert on_the_server(folder) == [UNFINISHED, "somebodys"]
    held = begin_attempt(folder)
    pruning.carry_out(held.attempt)
    assert on_the_server(folder) == ["somebodys"]
    held.release()
    storage = ["--storage", folder.storage, "--tracking-uri", ""]
    assert main(["runs", "delete", "run", *storage, "--yes"]) == 0
    assert on_the_server(folder) == []


@pytest.fixture
def proxy(object_store: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultProxy]:
    """A proxy to which new stores go."""
    with FaultProxy(os.environ["AWS_ENDPOINT_URL"]) as proxy:
        monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
        s3fs.S3FileSystem.clear_instance_cache()
        yield proxy
        s3fs.S3FileSystem.clear_instance_cache()


@pytest.mark.parametrize("kind", [Kind.REFUSE, Kind.LOSE_ANSWER, Kind.RESET_ANSWER])
@pytest.mark.parametrize(("method", "target"), [("GET", "uploads"), ("DELETE", "uploadId=")])
def test_a_storage_that_fails_for_a_while_is_waited_for(
    proxy: FaultProxy, folder: RunFolder, kind: Kind, method: str, target: str
) -> None:
    begin_upload(folder, UNFINISHED)
    proxy.schedule.add(Fault(kind, method=method, target=target, times=4))
    (found,) = folder.store.unfinished_uploads()
    folder.store.abort(found)
    assert len(proxy.schedule.hits) == 4
    proxy.schedule.clear()
    assert folder.store.unfinished_uploads() == []


@pytest.mark.parametrize(
    ("method", "target", "status", "code"),
    [
        ("GET", "uploads", "403 Forbidden", "AccessDenied"),
        # Of a server that knows no such question.
        ("GET", "uploads", "404 Not Found", "NoSuchKey"),
        ("DELETE", "uploadId=", "403 Forbidden", "AccessDenied"),
    ],
)
def test_where_uploads_may_not_be_listed_or_aborted_the_rest_is_collected_all_the_same(
    proxy: FaultProxy,
    folder: RunFolder,
    method: str,
    target: str,
    status: str,
    code: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    begin_attempt(folder).release()
    folder.store.write(UNFINISHED, b"half")
    begin_upload(folder, UNFINISHED)
    segment = "journal/steps-00000001-00000001-a0001.jsonl"
    folder.store.write(segment, b"{}")
    body = f"<Error><Code>{code}</Code><Message>No.</Message></Error>".encode()
    proxy.schedule.add(Fault(Kind.REFUSE, method, target, status=status, body=body, times=math.inf))
    held = begin_attempt(folder)
    with caplog.at_level(logging.WARNING), lease.alive_until_released(held):
        delete_orphans_of_the_dead(RunWriter(folder, held.attempt))
    assert folder.store.names("checkpoints") == []
    assert len(proxy.schedule.hits) == 1
    assert not folder.store.exists(segment)
    assert re.search("parts of (an )?unfinished uploads? could not be deleted", caplog.text)
    proxy.schedule.clear()
    assert on_the_server(folder) == [UNFINISHED]
