"""The journal: every metric of every step, with its time, in segments of JSON lines.

A line is one `Entry`. `metrics` are exact and come out the same in every repetition of the
run; `rates` (samples/s and the like) and `time` belong to the machine and the hour.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping

from pydantic import BaseModel, ConfigDict

from train_core.errors import CheckpointError
from train_core.storage.manifest import FileEntry, digest_of
from train_core.storage.names import JOURNAL, SegmentName
from train_core.storage.store import Store


class Entry(BaseModel):
    """What was measured at one step. `time` is in seconds since 1970, UTC."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    step: int
    time: float
    metrics: dict[str, float | None]
    rates: dict[str, float] = {}


def finite(metrics: Mapping[str, float]) -> dict[str, float | None]:
    """The metrics with null where JSON has no number: NaN and the infinities."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def write_segment(store: Store, entries: Iterable[Entry], attempt: int) -> FileEntry:
    """Store the entries, oldest first, as a new segment and say what it is."""
    listed = list(entries)
    name = str(SegmentName(listed[0].step, listed[-1].step, attempt))
    data = "".join(entry.model_dump_json() + "\n" for entry in listed).encode()
    store.write(f"{JOURNAL}/{name}", data, durable=True)
    return FileEntry.of(name, data)


def read_segments(store: Store, segments: Iterable[FileEntry]) -> Iterator[Entry]:
    """The entries of the segments. Raises CheckpointError for one that is gone or altered."""
    for segment in segments:
        try:
            data = store.read(f"{JOURNAL}/{segment.name}")
        except FileNotFoundError as error:
            raise CheckpointError(f"{error}: a commit covers this segment") from error
        if len(data) != segment.size_bytes or digest_of(data) != segment.digest:
            raise CheckpointError(f"{store.uri(JOURNAL)}/{segment.name}: not what was committed")
        for line in data.splitlines():
            yield Entry.model_validate_json(line)
