"""A Store that fails, or kills its process, at the operation that a test names."""

from __future__ import annotations

import json
import os
import signal
import uuid
from collections import Counter
from dataclasses import asdict, dataclass
from functools import partialmethod
from pathlib import Path
from typing import Any, Literal, Self

from train_core.errors import StorageError
from train_core.storage.objects.retry_policy import RetryPolicy
from train_core.storage.objects.store import Store

KINDS = ("write", "create", "put", "upload", "copy", "link_or_copy", "delete")
"""What changes something."""
LOOKS = (
    *("read", "load", "download", "digest", "size_bytes", "exists", "names", "in_folders"),
    "unfinished_uploads",
)
"""What only looks."""
LOOK = "look"
RECORD_BYTES = 32


@dataclass(frozen=True)
class Scheduled:
    """A fault at operation `op` (the first is 1), counted among those of `kind`.

    "" is all that change something, LOOK all that only look.
    """

    op: int
    kind: str
    how: Literal["error", "kill"]
    done: bool
    times: int | None


class FaultyStore(Store):
    """A real store whose operations are counted, and fail on schedule.

    The count and the schedule lie in the folder `notes` on this machine's disk, so that children,
    pickled copies and those in other processes go on counting where the others are.
    """

    def __init__(
        self, url: str, notes: str | Path, retry_policy: RetryPolicy | None = None
    ) -> None:
        super().__init__(url, retry_policy or RetryPolicy())
        self.notes = Path(notes)
        self.notes.mkdir(parents=True, exist_ok=True)

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.url, str(self.notes), self.retry_policy)

    def _at(self, url: str, retry_policy: RetryPolicy) -> Self:
        return type(self)(url, self.notes, retry_policy)

    def fail_at(
        self,
        op: int,
        *,
        kind: str = "",
        how: Literal["error", "kill"] = "error",
        done: bool = False,
        times: int | None = 1,
    ) -> None:
        """Fail at operation `op` of `kind`, counted from the beginning, and `times - 1` after it.

        `how` is a StorageError, or the end of the process; `done` lets the operation happen first,
        as when its answer is lost; `times=None` fails forever.
        """
        assert op >= 1, "the first operation is 1"
        assert kind in ("", LOOK, *KINDS, *LOOKS), f"{kind!r} is none of {KINDS + LOOKS}"
        schedule = [asdict(fault) for fault in self._schedule()]
        schedule.append(asdict(Scheduled(op, kind, how, done, times)))
        # Other threads and processes read it meanwhile.
        written = self.notes / f"schedule-{uuid.uuid4().hex}.json"
        written.write_text(json.dumps(schedule))
        written.replace(self.notes / "schedule.json")

    def work_again(self) -> None:
        """Forget all faults; the count goes on."""
        (self.notes / "schedule.json").unlink(missing_ok=True)

    @property
    def operations(self) -> list[str]:
        """The kinds of the changes so far, in their order, those that failed included."""
        return [kind for kind in self.everything if kind in KINDS]

    @property
    def everything(self) -> list[str]:
        """The kinds of all operations so far, likewise."""
        file = self.notes / "operations"
        return _kinds(file.read_bytes()) if file.exists() else []

    def _done(self, kind: str, *given: Any, **named: Any) -> Any:
        """What the operation gives, if no fault meets it."""
        act = getattr(super(), kind)
        fault = self._met(kind)
        if fault is None:
            return act(*given, **named)
        if fault.done:
            act(*given, **named)
        if fault.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        # `upload` has a file of this machine before the key.
        key = (*given, "")[1 if kind == "upload" else 0]
        raise StorageError(f"cannot {kind} {self.uri(key)}: the test has scheduled this")

    def _met(self, kind: str) -> Scheduled | None:
        so_far = self._count(kind)
        for fault in self._schedule():
            kinds = {"": KINDS, LOOK: LOOKS}.get(fault.kind, (fault.kind,))
            after = sum(so_far[one] for one in kinds) - fault.op
            if kind in kinds and after >= 0 and (fault.times is None or after < fault.times):
                return fault
        return None

    def _count(self, kind: str) -> Counter[str]:
        """The operations up to this one, which is added."""
        file = os.open(self.notes / "operations", os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            # Appending is one step, also among processes, and leaves the file's own position there.
            os.write(file, kind.ljust(RECORD_BYTES).encode())
            return Counter(_kinds(os.pread(file, os.lseek(file, 0, os.SEEK_CUR), 0)))
        finally:
            os.close(file)

    def _schedule(self) -> list[Scheduled]:
        file = self.notes / "schedule.json"
        return (
            [Scheduled(**fault) for fault in json.loads(file.read_text())] if file.exists() else []
        )


for _kind in (*KINDS, *LOOKS):
    setattr(FaultyStore, _kind, partialmethod(FaultyStore._done, _kind))


class DistantStore(FaultyStore):
    """One of another node's disk: its files have to be downloaded, on whatever storage they are."""

    @property
    def is_local(self) -> bool:
        return False


def _kinds(records: bytes) -> list[str]:
    size = RECORD_BYTES
    return [records[at : at + size].decode().strip() for at in range(0, len(records), size)]
