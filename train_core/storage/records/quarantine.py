"""`quarantined.json` beside a manifest: why the checkpoint is used no more."""

from __future__ import annotations

from contextlib import suppress

from pydantic import BaseModel

from train_core.errors import CheckpointError, ConfigError
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import SMALL_BYTES, read_document
from train_core.storage.records.names import CHECKPOINTS, QUARANTINED_JSON, CheckpointName

_LONGEST_REASON = 4000


class QuarantineMark(BaseModel):
    """Why a checkpoint is used no more."""

    reason: str


def quarantine_reason(store: Store, name: CheckpointName) -> str | None:
    """Why the checkpoint is quarantined; None if it is not."""
    try:
        return read_mark(store, name).reason
    except FileNotFoundError:
        return None
    except (CheckpointError, ConfigError) as error:
        # Whatever lies there marks the checkpoint.
        return str(error)


def read_mark(store: Store, name: CheckpointName) -> QuarantineMark:
    """The mark. Raises FileNotFoundError, and CheckpointError or ConfigError as documents do."""
    what = "a quarantine mark"
    return read_document(store, QuarantineMark, _key(name), what, max_bytes=SMALL_BYTES)[0]


def mark_quarantined(store: Store, name: CheckpointName, reason: str) -> None:
    """Write the mark, unless there is one; a very long reason is cut."""
    reason = reason[:_LONGEST_REASON]
    with suppress(FileExistsError):
        store.create(_key(name), QuarantineMark(reason=reason).model_dump_json().encode())


def remove_mark(store: Store, name: CheckpointName) -> None:
    """Delete the mark: the checkpoint counts again."""
    store.delete(_key(name))


def _key(name: CheckpointName) -> str:
    return f"{CHECKPOINTS}/{name}/{QUARANTINED_JSON}"
