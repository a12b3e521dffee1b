"""The journal: every metric of every step, with its time, in segments of JSON lines.

A line is one `Entry`. `metrics` are exact and come out the same in every repetition of the
run; `rates` (samples/s and the like) and `time` belong to the machine and the hour.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from train_core.errors import CheckpointError
from train_core.policy.journal_segments import segments_to_merge
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import Count, parse_part
from train_core.storage.records.manifest import FileEntry
from train_core.storage.records.names import JOURNAL, SegmentName
from train_core.storage.records.verified_files import fault_of, read_file

_PIECE_BYTES = 2**20
_MAX_LINE_BYTES = 16 * 2**20
_log = logging.getLogger(__name__)


def _is_empty(found: dict[str, Any]) -> bool:
    return not found


class Entry(BaseModel):
    """What was measured at one step. `time` is in seconds since 1970, UTC."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: Count
    time: float
    metrics: dict[str, float | None]
    rates: dict[str, float] = {}
    texts: dict[str, str] = Field(
        default={},
        exclude_if=_is_empty,
        description="What is no number: reported by a training function, or `processors`, on which "
        "an attempt that begins is computed.",
    )
    by_rank: dict[str, dict[str, float | None]] = Field(
        default={},
        exclude_if=_is_empty,
        description="What a training function reported on the other ranks than rank 0.",
    )


def finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """The metrics with null where JSON has no number: NaN and the infinities."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def append(
    store: Store, journal: tuple[FileEntry, ...], entries: Sequence[Entry], attempt: int
) -> tuple[FileEntry, ...]:
    """Store the entries, oldest first, and give the segments of the journal with them.

    The newest segments that are no larger than the new data are merged with it, so that a journal
    of any length has few segments. The segments that were merged stay, until they are deleted with
    the last checkpoint that lists them.
    """
    if not entries:
        return journal
    first_step, last_step = entries[0].step, entries[-1].step
    data = "".join(entry.model_dump_json() + "\n" for entry in entries).encode()
    count = segments_to_merge([segment.size_bytes for segment in journal], len(data))
    kept, merged = journal[: len(journal) - count], journal[len(journal) - count :]
    try:
        data = b"".join([*(_read(store, segment) for segment in merged), data])
    except CheckpointError as error:
        _log.warning("the journal has a gap, which stays: %s", error)
        kept, merged = journal, ()
    oldest = SegmentName.parse(merged[0].name) if merged else None
    name = str(SegmentName(oldest.first_step if oldest else first_step, last_step, attempt))
    store.write(f"{JOURNAL}/{name}", data, durable=True)
    return (*kept, FileEntry.of(name, data))


def read_segments(store: Store, segments: Iterable[FileEntry]) -> Iterator[Entry]:
    """The entries of the segments. Raises CheckpointError for one that is gone or altered."""
    for segment in segments:
        yield from _all_entries(store, segment)


def read_good_segments(
    store: Store, segments: Iterable[FileEntry], *, is_final: bool = True
) -> Iterator[Entry]:
    """The entries of the segments, to be shown; one that is gone or altered is warned about.

    If it `is_final`: until then a segment may be gone because a larger one has it by now.
    """
    for segment in segments:
        try:
            yield from _all_entries(store, segment)
        except CheckpointError as error:
            level = logging.WARNING if is_final else logging.DEBUG
            _log.log(level, "some metrics are not shown: %s", error)


def fault_of_segment(store: Store, segment: FileEntry) -> str:
    """What is wrong with the segment's bytes, a line or its name; nothing if all is well."""
    key = f"{JOURNAL}/{segment.name}"
    if fault := fault_of(store, key, segment):
        return fault
    name = SegmentName.parse(segment.name)
    if name is None:
        return f"{key} is no name of a segment"
    try:
        for entry in _entries(store, segment, key):
            if not name.first_step <= entry.step <= name.last_step:
                return f"{key} has an entry of step {entry.step}"
    except CheckpointError as error:
        return str(error)
    return ""


def _all_entries(store: Store, segment: FileEntry) -> list[Entry]:
    """Every entry of the segment: none of one that is damaged further on."""
    return list(_entries(store, segment, store.uri(f"{JOURNAL}/{segment.name}")))


def _entries(store: Store, segment: FileEntry, where: str) -> Iterator[Entry]:
    """The entries, each parsed strictly. `where` names the segment in errors."""
    for line in _lines(_read(store, segment), where):
        yield parse_part(Entry, line, where, "a segment of the journal")


def _lines(data: memoryview, where: str) -> Iterator[bytes]:
    """The lines, without a copy of all of them. Raises CheckpointError for one that is too long."""
    rest = b""
    for start in range(0, len(data), _PIECE_BYTES):
        *lines, rest = (rest + data[start : start + _PIECE_BYTES]).split(b"\n")
        yield from lines
        if len(rest) > _MAX_LINE_BYTES:
            raise CheckpointError(f"{where}: not a segment of the journal: a line is too long")
    if rest:
        yield rest


def _read(store: Store, segment: FileEntry) -> memoryview:
    return read_file(store, f"{JOURNAL}/{segment.name}", segment)
