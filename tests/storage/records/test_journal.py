from __future__ import annotations

import math
from itertools import pairwise
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_core.errors import CheckpointError
from train_core.storage.objects.store import Store
from train_core.storage.records.journal import (
    Entry,
    append,
    fault_of_segment,
    finite,
    read_good_segments,
    read_segments,
)
from train_core.storage.records.manifest import FileEntry

ENTRIES = [
    Entry(step=1, time=1.5, metrics={"train/loss": 0.1 + 0.2}, rates={"samples_per_s": 99.5}),
    Entry(step=2, time=2.5, metrics={"train/loss": None, "validation/accuracy": 1.0}),
    Entry(step=3, time=3.5, metrics={}),
]
KEY = "journal/steps-00000001-00000002-a0004.jsonl"


@pytest.fixture
def store(storage_url: str) -> Store:
    return Store(storage_url)


def test_what_is_written_is_read_back_in_order(store: Store) -> None:
    segments = append(store, append(store, (), ENTRIES[:2], attempt=4), ENTRIES[2:], attempt=5)
    assert [segment.name for segment in segments] == [
        "steps-00000001-00000002-a0004.jsonl",
        "steps-00000003-00000003-a0005.jsonl",
    ]
    assert list(read_segments(store, segments)) == ENTRIES


@given(st.dictionaries(st.text(), st.floats()))
def test_metrics_keep_every_bit(metrics: dict[str, float]) -> None:
    entry = Entry(step=1, time=0, metrics=finite(metrics))
    again = Entry.model_validate_json(entry.model_dump_json()).metrics
    assert again.keys() == metrics.keys()
    for name, value in again.items():
        assert (value is None) == (not math.isfinite(metrics[name]))
        assert value is None or value.hex() == metrics[name].hex()


@pytest.mark.parametrize("damage", [b"", b"{}\n", b"\n"])
def test_an_altered_segment_is_refused(store: Store, damage: bytes) -> None:
    (segment,) = append(store, (), ENTRIES[:2], attempt=4)
    store.write(KEY, damage)
    with pytest.raises(CheckpointError, match=f"{KEY}:? .*committed"):
        list(read_segments(store, [segment]))


def test_one_flipped_bit_is_refused(store: Store) -> None:
    (segment,) = append(store, (), ENTRIES[:2], attempt=4)
    data = bytearray(store.read(KEY))
    data[len(data) // 2] ^= 1
    store.write(KEY, bytes(data))
    with pytest.raises(CheckpointError, match="is not the committed one"):
        list(read_segments(store, [segment]))


def test_a_missing_segment_is_refused(store: Store) -> None:
    segment = FileEntry.of("steps-00000001-00000002-a0004.jsonl", b"")
    with pytest.raises(CheckpointError, match=f"{KEY} is missing"):
        list(read_segments(store, [segment]))


@pytest.mark.promise("untrusted-files")
@pytest.mark.parametrize(
    ("line", "told"),
    [
        (b'{"step": 1, "time": 1, "metrics": {"a": 1, "a": 2}}', "the key 'a' is there twice"),
        (b'{"step": true, "time": 1, "metrics": {}}', "step: Input should be a valid integer"),
        (b'{"step": ' + b"9" * 5000 + b"}", "a number in it has too many digits"),
        (b'{"step": 1, "time": 1, "metrics": {}, "format": 2}', "format: Extra inputs are not"),
        (b'{"step": 1, "time": 1, "metrics": {"a\\nb": "c"}}', r"metrics.a\nb: Input should be a"),
    ],
    ids=["key twice", "true", "5,000 digits", "another format", "line break in a name"],
)
def test_lines_that_their_manifest_vouches_for_are_refused_in_one_line(
    store: Store, line: bytes, told: str, caplog: pytest.LogCaptureFixture
) -> None:
    store.write(KEY, line + b"\n")
    segment = FileEntry.of(KEY.removeprefix("journal/"), line + b"\n")
    with pytest.raises(CheckpointError) as refusal:
        list(read_segments(store, [segment]))
    message = f"{store.uri(KEY)}: not a segment of the journal: {told}"
    assert str(refusal.value).startswith(message)
    assert "\n" not in str(refusal.value)
    assert fault_of_segment(store, segment).startswith(f"{KEY}: not a segment of the journal: ")
    assert list(read_good_segments(store, [segment])) == []
    assert message in caplog.text


@pytest.mark.promise("damaged-journal")
def test_what_is_left_of_a_damaged_journal_is_shown(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    journal = append(store, append(store, (), ENTRIES[:2], attempt=4), ENTRIES[2:], attempt=5)
    store.write(f"journal/{journal[0].name}", b"{}\n")
    assert list(read_good_segments(store, journal)) == ENTRIES[2:]
    assert f"some metrics are not shown: {store.uri(f'journal/{journal[0].name}')}" in caplog.text


@pytest.mark.promise("small-manifest")
@given(st.lists(st.integers(1, 5), min_size=1, max_size=60))
def test_a_journal_of_any_length_has_few_segments(commits: list[int]) -> None:
    with TemporaryDirectory() as folder:
        store, journal, written = Store(folder), tuple[FileEntry, ...](), []
        for count in commits:
            new = [Entry(step=len(written) + i, time=0, metrics={}) for i in range(count)]
            written += new
            journal = append(store, journal, new, attempt=1)
        assert list(read_segments(store, journal)) == written
        sizes = [segment.size_bytes for segment in journal]
        assert all(size > 2 * after for size, after in pairwise(sizes))


def test_a_segment_that_is_gone_is_not_merged(store: Store) -> None:
    (segment,) = append(store, (), ENTRIES[:1], attempt=4)
    store.delete(f"journal/{segment.name}")
    journal = append(store, (segment,), ENTRIES[1:], attempt=4)
    assert journal[0] == segment
    assert list(read_segments(store, journal[1:])) == ENTRIES[1:]


def test_no_entries_no_segment(store: Store) -> None:
    assert append(store, (), [], attempt=1) == ()
