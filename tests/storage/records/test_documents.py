"""What an enemy may write into a document, whose digest is made anew, is refused by its name."""

from __future__ import annotations

import json
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from pydantic import RootModel

from tests.storage.samples import manifest, record
from train_core.errors import CheckpointError, ConfigError
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import (
    MAX_DOCUMENT_BYTES,
    MAX_ENTRIES,
    read_document,
    read_object,
    with_checksum,
)
from train_core.storage.records.manifest import CheckpointManifest, FileEntry, read_manifest
from train_core.storage.records.run_record import RunRecord

DEEP = 100_000
LIMIT_BYTES = 2**28
LIMIT_OBJECTS = 10
"""It may take as long as so many million small objects, also while the memory is measured."""


class Anything(RootModel[dict[str, Any]]):
    pass


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


def altered(**changes: Any) -> bytes:
    return with_checksum(Anything(manifest().model_dump(mode="json", by_alias=True) | changes))


def resealed(content: bytes) -> bytes:
    """The manifest's text with another digest, as anybody can make it."""
    from train_core.storage.objects.digest_algorithm import digest_of

    kept = content[: content.rindex(b",")]
    return kept + f',\n "digest": "{digest_of(kept)}"\n}}\n'.encode()


def refused(store: Store, data: bytes) -> str:
    """What a manifest of these bytes is refused with, in little time and memory."""
    store.write("manifest.json", data)
    tracemalloc.start()
    begun = time.process_time()
    try:
        with pytest.raises(CheckpointError) as refusal:
            read_manifest(store, CheckpointManifest)
        took_s = time.process_time() - begun
        assert tracemalloc.get_traced_memory()[1] < LIMIT_BYTES
        begun = time.process_time()
        made = [{} for _ in range(100_000)]
        assert took_s < LIMIT_OBJECTS * 10 * (time.process_time() - begun), len(made)
    finally:
        tracemalloc.stop()
    return str(refusal.value)


@pytest.mark.promise("untrusted-files")
def test_a_key_that_is_there_twice_is_refused(store: Store) -> None:
    twice = manifest().to_json().replace(b'"step": 1,', b'"step": 1,\n "step": 170,')
    assert "the key 'step' is there twice" in refused(store, resealed(twice))
    store.write("a.json", b'{"a": {"b": 1, "c": [{"d": 1, "d": 2}]}}')
    with pytest.raises(CheckpointError, match="the key 'd' is there twice"):
        read_object(store, "a.json")


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"step": True}, "step"),
        ({"step": 1.0}, "step"),
        ({"step": "1"}, "step"),
        ({"step": 10**300}, "step"),
        ({"step": 10**18}, "step"),
        ({"attempt": 10**18}, "attempt"),
        ({"epoch": True}, "epoch"),
        ({"validated": 1}, "validated"),
        ({"elapsed_s": True}, "elapsed_s"),
        ({"format": True}, "format"),
        ({"metrics": {"a": True}}, "metrics.a"),
        ({"metrics": {"a": "0.5"}}, "metrics.a"),
        ({"metrics": {"a" * 1025: 0.5}}, "metrics"),
        ({"created_at": "x" * 2000}, "created_at"),
        ({"stopped_by": "x" * 2000}, "stopped_by"),
    ],
)
def test_types_ranges_and_lengths_are_strict(
    store: Store, changes: dict[str, Any], place: str
) -> None:
    assert f"not a manifest of format 1: {place}" in refused(store, altered(**changes))


def test_a_number_of_5000_digits_is_refused_without_pythons_words(store: Store) -> None:
    store.write("a.json", b'{"a": ' + b"9" * 5000 + b"}")
    with pytest.raises(CheckpointError, match="not a JSON object: a number in it has too many d"):
        read_object(store, "a.json")


def test_a_document_of_200_levels_is_read_and_a_deeper_one_refused(store: Store) -> None:
    for levels in (200, 202):
        store.write("a.json", b'{"a": ' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}")
        if levels == 200:
            assert read_object(store, "a.json")
        else:
            with pytest.raises(CheckpointError, match=r"not a JSON object: .*(deep|recursion)"):
                read_object(store, "a.json")


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"1e999"])
def test_what_is_no_finite_number_is_no_metric(store: Store, number: bytes) -> None:
    data = altered(metrics={"a": 0.5}).replace(b"0.5", number)
    assert "metrics.a" in refused(store, resealed(data))


@pytest.mark.parametrize("field", ["files", "journal"])
def test_a_file_that_is_listed_twice_is_refused(store: Store, field: str) -> None:
    entry = FileEntry.of("a", b"").model_dump()
    assert f"{field}.1.name" in refused(store, altered(**{field: [entry, entry]}))


@pytest.mark.slow
def test_documents_that_are_as_large_as_allowed_are_refused_soon(store: Store) -> None:
    entry = FileEntry.of("a", b"").model_dump()
    files = [entry | {"name": f"f{number}"} for number in range(MAX_ENTRIES + 1)]
    assert "files" in refused(store, altered(files=files))
    metrics = dict.fromkeys((f"m{number}" for number in range(150_000)), 0.5)
    assert "metrics" in refused(store, altered(metrics=metrics))
    assert "at most" in refused(store, b"[" * (MAX_DOCUMENT_BYTES + 1))
    long = altered(created_at="x" * (MAX_DOCUMENT_BYTES - 2000))
    assert "created_at" in refused(store, long)
    nothing = b",".join([b"[]"] * (MAX_DOCUMENT_BYTES // 3))
    refused(store, resealed(b'{"metrics": [' + nothing[:-2000] + b"],\n"))


def test_nesting_is_bounded(store: Store) -> None:
    for opened, closed in ((b"[", b"]"), (b'{"a":', b"}")):
        deep = b'{"a": ' + opened * DEEP + b"1" + closed * DEEP + b"}"
        store.write("a.json", deep)
        with pytest.raises(CheckpointError, match=r"not a JSON object: .*(deep|recursion)"):
            read_object(store, "a.json")


def test_a_setting_that_is_text_of_nested_json_is_refused(store: Store) -> None:
    content = json.loads(record().model_dump_json())
    content["config"]["settings"] = "[" * DEEP
    store.write("run.json", json.dumps(content).encode())
    with pytest.raises(CheckpointError, match=r"nested too deeply|more than 100 deep"):
        read_document(store, RunRecord, "run.json", "the record of a run")


@pytest.mark.parametrize("text", ['{"a": 1%s}' % ("0" * 5000), '{"a": "\\ud800"}', "[]", "1", ""])
def test_what_is_no_object_of_json_is_refused(store: Store, text: str) -> None:
    store.write("a.json", text.encode())
    with pytest.raises(CheckpointError, match="not a JSON object"):
        read_object(store, "a.json")


def test_other_encodings_are_refused(store: Store) -> None:
    store.write("a.json", '{"a": 1}'.encode("utf-16"))
    with pytest.raises(CheckpointError, match="not a JSON object"):
        read_object(store, "a.json")


def test_a_folder_in_the_place_of_a_document_is_named(store: Store) -> None:
    store.write("a.json/b", b"")
    with pytest.raises(CheckpointError, match=r"a\.json is a folder and no file"):
        read_object(store, "a.json")


def test_what_would_not_be_read_again_is_not_written() -> None:
    long = manifest().model_dump() | {"kind": "x" * MAX_DOCUMENT_BYTES}
    with pytest.raises(ConfigError, match="would not be read again"):
        with_checksum(Anything(long))
