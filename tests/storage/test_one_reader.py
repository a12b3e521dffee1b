"""What lies in a storage is read at one door: nothing else takes its bytes, or parses its JSON.

`records/documents.py` and `records/verified_files.py` are that door; docs/decisions/018 says what
they check. A user's own data are read by `DataStore`, as they may be behind links.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

import pytest

from tests.storage.test_one_writer import ROOT, is_store, sources
from train_core.storage.objects.store import DataStore, Store

OBJECTS = "train_core/storage/objects"
READS = {"read", "chunks", "piece", "load", "download"}
"""What gives the bytes of an object."""
DOOR = {
    ("train_core/storage/records/documents.py", "store.read"),
    ("train_core/storage/records/verified_files.py", "store.chunks"),
    ("train_core/storage/records/verified_files.py", "store.load"),
    ("train_core/storage/records/verified_files.py", "store.download"),
    # The header of a file whose digest was compared.
    ("train_core/storage/verification/runs.py", "self._store.piece"),
}
OF_DATA = {
    ("train_core/datasets/files.py", "store.chunks"),
    ("train_core/datasets/files.py", "store.load"),
    ("train_core/datasets/files.py", "store.read"),
    ("train_core/rank/data/formats.py", "store.read"),
    ("train_core/rank/data/input_files.py", "self._store.piece"),
    ("train_core/rank/data/input_files.py", "store.chunks"),
    ("train_core/rank/data/input_files.py", "store.read"),
    ("train_core/driver/preparing/init_source.py", "store.chunks"),
    ("train_core/workloads/idx.py", "store.piece"),
    ("train_core/workloads/idx.py", "store.read"),
    ("train_core/workloads/resnet.py", "DataStore(folder).read"),
}
"""The user's own files: what is trained on, what is scored, weights to begin with."""
PARSERS = {
    # The door.
    ("train_core/storage/records/documents.py", "json.loads"),
    ("train_core/storage/records/documents.py", "model.model_validate_json"),
    # A text that was typed.
    ("train_core/config/json_text.py", "json.loads"),
    # From one process of evertrain's to another of the same user.
    ("train_core/client/carriers/pipe.py", "stage.answer.model_validate_json"),
    ("train_core/client/isolated.py", "json.loads"),
    ("train_core/client/verify_resume.py", "json.loads"),
    ("train_core/differences.py", "json.loads"),
    ("train_core/rank/distributed/rank_mailbox.py", "json.loads"),
    ("train_core/rank/distributed/stop_requests.py", "StopRequest.model_validate_json"),
    ("train_core/driver/pipe_transport.py", "json.loads"),
    ("train_core/functions/reports/channel.py", "json.loads"),
    ("train_core/functions/reports/committer.py", "json.loads"),
    # What Ray's dashboard says of a job.
    ("train_core/client/carriers/ray_jobs.py", "_JobInfo.model_validate_json"),
    # What was written a line before.
    ("train_core/rehearsal/steps.py", "json.loads"),
    ("train_core/tools/isolated_call.py", "json.load"),
    ("train_core/tools/killed_in_place.py", "StandaloneTask.model_validate_json"),
    ("train_core/tools/standalone.py", "StandaloneTask.model_validate_json"),
    # What pip wrote beside an installed distribution.
    ("train_core/own_code.py", "json.loads"),
    # A model in MLflow, in the folder that MLflow has loaded.
    ("train_core/tracking/mlflow/serving.py", "Served.model_validate_json"),
}


def made(kind: str, source: str) -> bool:
    """Whether the source makes an object of that kind."""
    found = (node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    return any(isinstance(one, ast.Name) and one.id == kind for one in found)


def reads_in(source: str) -> Iterator[str]:
    """The calls that take an object's bytes from a store."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=store, attr=name) as read):
                if name in READS and is_store(store):
                    yield ast.unparse(read)


def parsers_in(source: str) -> Iterator[str]:
    """The calls that parse JSON."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call):
            call = ast.unparse(node.func)
            if call in ("json.loads", "json.load") or call.endswith(".model_validate_json"):
                yield call


def found(calls_in: Callable[[str], Iterator[str]]) -> set[tuple[str, str]]:
    return {
        (path, call)
        for path in sources()
        if not path.startswith(OBJECTS)
        for call in calls_in((ROOT / path).read_text())
    }


@pytest.mark.promise("untrusted-files")
def test_bytes_of_a_storage_are_taken_at_the_door_only() -> None:
    assert found(reads_in) == DOOR | OF_DATA


@pytest.mark.promise("untrusted-files")
def test_json_of_a_storage_is_parsed_at_the_door_only() -> None:
    assert found(parsers_in) == PARSERS


def test_a_users_data_are_read_by_a_store_of_their_own() -> None:
    assert {path for path in sources() if made("DataStore", (ROOT / path).read_text())} == {
        *("train_core/datasets/files.py", "train_core/datasets/sources.py"),
        *("train_core/rank/data/inputs.py", "train_core/storage/addresses.py"),
        *("train_core/workloads/idx.py", "train_core/workloads/resnet.py"),
    }
    assert (Store.follows_links, DataStore.follows_links) == (False, True)


@pytest.mark.parametrize(
    "source",
    [
        "folder.store.read(key)",
        "self._folder.store.chunks(key)",
        "Store(url).child('run').load(key, 1)",
        "store.piece(key, 0, 1)",
    ],
)
def test_a_read_beside_the_door_is_noticed(source: str) -> None:
    assert list(reads_in(source))


@pytest.mark.parametrize("source", ["file.read()", "queue.load(1)", "names_of_store_x.read(1)"])
def test_reading_elsewhere_is_none_of_a_storage(source: str) -> None:
    assert not list(reads_in(source))
