"""`quarantined.json` beside a manifest: why the checkpoint is used no more."""

from __future__ import annotations

from contextlib import suppress

from pydantic import BaseModel

from train_core.errors import CheckpointError
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import read_document
from train_core.storage.records.names import CHECKPOINTS, QUARANTINED_JSON, CheckpointName


class QuarantineMark(BaseModel):
    """Why a checkpoint is used no more."""

    reason: str


def is_quarantined(store: Store, name: CheckpointName) -> bool:
    """Whether the checkpoint has a mark."""
    return store.exists(_key(name))


def quarantine_reason(store: Store, name: CheckpointName) -> str | None:
    """Why the checkpoint is quarantined; None if it is not."""
    try:
        mark, _ = read_document(store, QuarantineMark, _key(name), "a quarantine mark")
    except FileNotFoundError:
        return None
    except CheckpointError as error:
        # Whatever lies there marks the checkpoint.
        return str(error)
    return mark.reason


def mark_quarantined(store: Store, name: CheckpointName, reason: str) -> None:
    """Write the mark, unless there is one."""
    with suppress(FileExistsError):
        store.create(_key(name), QuarantineMark(reason=reason).model_dump_json().encode())


def _key(name: CheckpointName) -> str:
    return f"{CHECKPOINTS}/{name}/{QUARANTINED_JSON}"
