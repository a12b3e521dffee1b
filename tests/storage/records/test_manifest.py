from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from blake3 import blake3
from hypothesis import given
from hypothesis import strategies as st
from pydantic import RootModel

from tests.storage.samples import damaged, manifest
from train_core.errors import CheckpointError, ConfigError
from train_core.storage.objects.digest_algorithm import digest_of
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import MAX_DOCUMENT_BYTES, with_checksum
from train_core.storage.records.manifest import (
    CheckpointManifest,
    EvaluationManifest,
    read_manifest,
)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path))


class Anything(RootModel[dict[str, Any]]):
    """What an enemy writes, who knows how manifests end with a checksum."""


def test_what_was_not_scheduled_is_stored_as_not_in_turn(store: Store) -> None:
    """The name of the field in stored manifests is older than its name in the code."""
    unscheduled = manifest().model_copy(update={"scheduled": False})
    stored = json.loads(unscheduled.to_json())
    assert stored["in_turn"] is False
    assert "scheduled" not in stored
    store.create("manifest.json", unscheduled.to_json())
    assert read_manifest(store, CheckpointManifest)[0].scheduled is False


def altered(**changes: Any) -> bytes:
    return with_checksum(Anything(manifest().model_dump(mode="json") | changes))


def entry(**changes: Any) -> dict[str, Any]:
    return {"name": "model.safetensors", "size_bytes": 7, "digest": "0" * 64} | changes


def test_a_manifest_is_read_back_with_its_digest(store: Store) -> None:
    store.create("manifest.json", manifest().to_json())
    assert read_manifest(store, CheckpointManifest) == (manifest(), digest_of(manifest().to_json()))


def test_a_missing_manifest_is_not_found(store: Store) -> None:
    with pytest.raises(FileNotFoundError):
        read_manifest(store, CheckpointManifest)


@pytest.mark.promise("untrusted-files")
@pytest.mark.parametrize(
    "name",
    [
        *("", ".", "..", "../model.safetensors", "/etc/passwd", "a/b", "a/../b", "a\\b"),
        *(".hidden", "a\n", "a\0", "s3://bucket/a", "~", "a" * 256),
    ],
)
@pytest.mark.parametrize("field", ["files", "journal"])
def test_a_file_outside_the_folder_is_refused(store: Store, field: str, name: str) -> None:
    store.write("manifest.json", altered(**{field: [entry(name=name)]}))
    with pytest.raises(CheckpointError, match=rf"manifest.json: .*{field}.0.name: "):
        read_manifest(store, CheckpointManifest)


@pytest.mark.parametrize(
    ("changes", "place"),
    [
        ({"format": 0}, "format"),
        ({"format": None}, "format"),
        ({"kind": "evaluation"}, "kind"),
        ({"digest_algorithm": "crc32"}, "digest_algorithm"),
        ({"files": [entry(size_bytes=-1)]}, "files.0.size_bytes"),
        ({"files": [entry(digest="0" * 63)]}, "files.0.digest"),
        ({"files": [entry(digest="0" * 64 + "\n")]}, "files.0.digest"),
        ({"files": [entry(mode="0777")]}, "files.0.mode"),
        ({"files": {}}, "files"),
        ({"step": -1}, "step"),
        ({"attempt": 0}, "attempt"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_what_is_not_a_manifest_of_this_format_is_refused(
    store: Store, changes: dict[str, Any], place: str
) -> None:
    store.write("manifest.json", altered(**changes))
    with pytest.raises(CheckpointError, match=f"not a manifest of format 1: {place}: "):
        read_manifest(store, CheckpointManifest)


@pytest.mark.parametrize("digit", [b"0", b"3", b"5", b"9"])
def test_a_flipped_bit_makes_no_newer_format(store: Store, digit: bytes) -> None:
    whole = manifest().to_json()
    assert whole.count(b'"format": 1') == 1
    store.write("manifest.json", whole.replace(b'"format": 1', b'"format": ' + digit))
    with pytest.raises(CheckpointError, match="it was altered"):
        read_manifest(store, CheckpointManifest)


def test_the_manifest_of_another_kind_is_refused(store: Store) -> None:
    store.write("manifest.json", manifest().to_json())
    with pytest.raises(CheckpointError, match="kind"):
        read_manifest(store, EvaluationManifest)


@given(st.data())
def test_a_manifest_that_was_altered_anywhere_is_refused(drawn: st.DataObject) -> None:
    whole = manifest().to_json()
    with TemporaryDirectory() as folder:
        store = Store(folder)
        store.write("manifest.json", drawn.draw(damaged(whole)))
        with pytest.raises(CheckpointError):
            read_manifest(store, CheckpointManifest)


def test_a_manifest_cut_short_at_any_byte_is_refused(store: Store) -> None:
    whole = manifest().to_json()
    for length in range(len(whole)):
        store.write("manifest.json", whole[:length])
        with pytest.raises(CheckpointError):
            read_manifest(store, CheckpointManifest)


def test_a_manifest_is_json_whose_last_entry_is_the_digest_of_what_is_before() -> None:
    data = manifest().to_json()
    *_, (name, digest) = json.loads(data).items()
    assert (name, digest) == (
        "digest",
        blake3(data[: data.index(b',\n "digest"')]).hexdigest(),
    )


def test_bytes_that_are_no_text_are_refused(store: Store) -> None:
    store.write("manifest.json", b"\xff\xfe" + manifest().to_json())
    with pytest.raises(CheckpointError):
        read_manifest(store, CheckpointManifest)


def test_an_oversized_manifest_is_refused_before_it_is_read(store: Store, tmp_path: Path) -> None:
    with (tmp_path / "manifest.json").open("wb") as file:
        file.truncate(2**40)  # sparse: reading it whole would fail
    with pytest.raises(CheckpointError, match=f"at most {MAX_DOCUMENT_BYTES}"):
        read_manifest(store, CheckpointManifest)


@pytest.mark.promise("newer-format")
def test_a_newer_format_is_not_taken_for_damage(store: Store) -> None:
    store.write("manifest.json", altered(format=2, added_later=1))
    with pytest.raises(ConfigError, match="has format 2, this evertrain reads up to 1"):
        read_manifest(store, CheckpointManifest)
