"""Pins: an evaluation, an inference or a program keeps its checkpoint from being deleted meanwhile.

Commands that read a checkpoint (`diff`, `export`, `verify`) pin nothing, as they may run where they
may not write; if it is deleted meanwhile, they say so.

`pins/<checkpoint>/<who>.json` is one pin. It is valid for as long as its process runs, or until the
calls of its job on a cluster are cleared away, or for good. A reader writes its pin first, and
looks for a deletion (`deletion_notices.py`) then.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property

from pydantic import BaseModel, ConfigDict, Field

from train_core.errors import CheckpointError, ConfigError, StorageError
from train_core.storage.coordination import job_mailbox, lease
from train_core.storage.coordination.fence_list import read_fence_list
from train_core.storage.coordination.holder import Holder, Life, judge
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import LARGEST_NUMBER, SMALL_BYTES, Text, read_document
from train_core.storage.records.manifest import is_committed
from train_core.storage.records.names import (
    CHECKPOINTS,
    PINS,
    CheckpointName,
    PinName,
)

MLFLOW_MODEL = "mlflow-model"
"""The pin of a checkpoint whose model is in MLflow, where an alias may point to it."""
REGISTERED_MODEL = "registered-model"
"""The pin of a checkpoint that is a version of a registered model: it may become champion."""

DELETION = "deletion"
"""The pin that announces a deletion begins with it."""
_log = logging.getLogger(__name__)


class Pin(BaseModel):
    """Why a checkpoint is kept, and whose pin it is."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    why: Text
    created_at: Text = Field(description="UTC, ISO 8601.")
    holder: Holder | None = Field(description="The process that it ends with; null: it lasts.")
    attempt: int = Field(
        default=0, ge=0, le=LARGEST_NUMBER, description="The attempt it is of; 0: of none."
    )
    job: Text = Field(
        default="", description="The job on a cluster that it ends with; empty: none."
    )
    decided: bool = Field(
        default=False, description="Of a deletion: whether nobody has stepped in."
    )

    @property
    def is_lasting(self) -> bool:
        """Whether it ends with no process."""
        return self.holder is None


@dataclass(frozen=True)
class FoundPin:
    """Something that lies in `pins/<checkpoint>/`."""

    key: str
    pin: Pin | None
    """None for what cannot be read as a pin: it keeps the checkpoint, to be safe."""
    life: Life
    """As of `judge`; ALIVE for a pin that lasts, and for what cannot be read as one."""

    @property
    def checkpoint(self) -> str:
        """The name of the checkpoint that it keeps."""
        return self.key.split("/")[1]

    @property
    def who(self) -> str:
        """What pinned it, by the object's name."""
        return self.key.rpartition("/")[2].removesuffix(".json")

    @property
    def is_valid(self) -> bool:
        """Whether it still keeps the checkpoint."""
        # What runs elsewhere cannot be looked at: its pin holds until somebody says otherwise.
        return self.life is not Life.DEAD

    @property
    def is_elsewhere(self) -> bool:
        """Whether it ends with a process of another machine, or one that the system hides."""
        return self.life is Life.UNKNOWN

    @property
    def is_deletion(self) -> bool:
        """Whether it announces that the checkpoint is being deleted."""
        return self.pin is not None and _is_of_deletion(self.key)

    def __str__(self) -> str:
        holder = f", {self.pin.holder}" if self.pin and self.pin.holder else ""
        return (
            f"pinned: {self.pin.why if self.pin else 'by an unreadable pin'} ({self.key}{holder})"
        )


def pin(
    store: Store,
    checkpoint: CheckpointName,
    who: str,
    why: str,
    *,
    attempt: int = 0,
    job: str = "",
    is_lasting: bool = False,
) -> str:
    """Pin a checkpoint and give the pin's key: delete that object to let the checkpoint go.

    The pin ends with this process, with `attempt` if a newer one takes the run, and with `job` when
    its calls are cleared away, unless it is lasting; a lasting one that is there already is left as
    it is. Raises FileNotFoundError if the checkpoint is not there, or is just being deleted.
    """
    key = f"{PINS}/{PinName(checkpoint, who)}"
    if is_lasting and store.exists(key):
        return key
    write_pin(store, key, why, attempt=attempt, job=job, is_lasting=is_lasting)
    try:
        _check_there(store, checkpoint)
    except BaseException:
        store.delete(key)
        raise
    return key


@contextmanager
def pinned(
    store: Store,
    checkpoints: Iterable[CheckpointName],
    activity: str,
    *,
    attempt: int = 0,
    job: str = "",
) -> Iterator[None]:
    """Keep the checkpoints while the block runs. Raises FileNotFoundError if one is not there.

    `activity` is a word for what is done with them; it becomes part of the pins' names.
    """
    who = f"{activity}-{uuid.uuid4().hex[:8]}"
    with ExitStack() as stack:
        for name in checkpoints:
            key = pin(store, name, who, activity, attempt=attempt, job=job)
            stack.callback(_remove, store, key)
        yield


def pins_of(store: Store, checkpoint: str) -> list[FoundPin]:
    """What lies in the checkpoint's folder of pins, deletions too.

    Raises StorageError if that cannot be read.
    """
    return _pins_of(store, checkpoint, _Standing(store))


def all_pins(store: Store) -> Iterator[FoundPin]:
    """What lies in `pins/` of all checkpoints, deletions too. Raises StorageError."""
    standing = _Standing(store, lease.newest_attempt(store))
    for checkpoint in store.names(PINS):
        yield from _pins_of(store, checkpoint, standing)


def valid_pins(store: Store) -> list[FoundPin]:
    """The pins that keep checkpoints now, deletions left out. Raises StorageError."""
    return [one for one in all_pins(store) if one.is_valid and not one.is_deletion]


def sweep(store: Store) -> None:
    """Delete pins that hold no more, and all those of checkpoints that are not there."""
    # IMPORTANT: in this order. A driver that stands still in between may be fenced, and what is
    # committed and pinned meanwhile has no pin among those that were listed.
    pinned_ones = store.names(PINS)
    checkpoints = set(store.names(CHECKPOINTS))
    for name in pinned_ones:
        if CheckpointName.parse(name) and name not in checkpoints:
            store.delete(f"{PINS}/{name}")
    sweep_ended(store)


def sweep_ended(store: Store) -> None:
    """Delete pins that hold no more."""
    for found in all_pins(store):
        if not found.is_valid:
            store.delete(found.key)


def _check_there(store: Store, checkpoint: CheckpointName) -> None:
    uri = store.uri(f"{CHECKPOINTS}/{checkpoint}")
    if any(found.is_deletion and found.is_valid for found in pins_of(store, str(checkpoint))):
        raise FileNotFoundError(f"{uri} is being deleted")
    if not is_committed(store, checkpoint):
        raise FileNotFoundError(f"{uri} does not exist")


def _remove(store: Store, key: str) -> None:
    try:
        store.delete(key)
    except StorageError as error:
        _log.warning("a pin was not deleted; it ends with this process: %s", error)


def write_pin(
    store: Store,
    key: str,
    why: str,
    *,
    attempt: int,
    is_lasting: bool,
    job: str = "",
    decided: bool = False,
) -> None:
    """Write or replace the pin at the key; its holder is this process, unless it lasts."""
    written = Pin(
        why=why,
        created_at=datetime.now(UTC).isoformat(),
        holder=None if is_lasting else Holder.here(),
        attempt=attempt,
        job=job,
        decided=decided,
    )
    store.write(key, (written.model_dump_json(indent=1) + "\n").encode(), durable=is_lasting)


class _Standing:
    """The state of a run that pins depend on: read once for all of them, when one needs it."""

    def __init__(self, store: Store, newest_attempt: int | None = None) -> None:
        self._store = store
        self._newest_attempt = newest_attempt
        self._has_calls: dict[str, bool] = {}

    @cached_property
    def newest_attempt(self) -> int:
        known = self._newest_attempt
        return lease.newest_attempt(self._store) if known is None else known

    @cached_property
    def fenced_by(self) -> int:
        return read_fence_list(self._store).attempt

    def has_calls(self, job: str) -> bool:
        if job not in self._has_calls:
            self._has_calls[job] = job_mailbox.are_left(self._store, job)
        return self._has_calls[job]


def _pins_of(store: Store, checkpoint: str, standing: _Standing) -> list[FoundPin]:
    keys = (f"{PINS}/{checkpoint}/{name}" for name in store.names(f"{PINS}/{checkpoint}"))
    found = (_find(store, key, standing) for key in keys)
    return [one for one in found if one]


def _find(store: Store, key: str, standing: _Standing) -> FoundPin | None:
    try:
        found, _ = read_document(store, Pin, key, "a pin", max_bytes=SMALL_BYTES)
    except FileNotFoundError:
        return None
    except (CheckpointError, ConfigError):
        return FoundPin(key, None, Life.ALIVE)
    if found.holder is None:
        return FoundPin(key, found, Life.ALIVE)
    has_ended = _has_ended(key, found, standing)
    return FoundPin(key, found, judge(found.holder, has_ended=has_ended))


def _has_ended(key: str, pin: Pin, standing: _Standing) -> bool:
    """Whether the attempt or the job that the pin is of has ended."""
    if 0 < pin.attempt < standing.newest_attempt and not (
        _is_of_deletion(key) and pin.attempt >= standing.fenced_by
    ):
        return True
    return bool(pin.job) and not standing.has_calls(pin.job)


def _is_of_deletion(key: str) -> bool:
    return key.rpartition("/")[2].startswith(DELETION)
