"""Notices that a checkpoint is being deleted: announced first, then decided.

The deletes themselves are `RunWriter.delete_checkpoint`.

A driver that wants to delete a checkpoint announces it, by a pin of its own kind, and looks for the
pins of readers then; a reader writes its pin first and looks for a deletion then. So at least one
of the two sees the other and steps back: a checkpoint that was pinned is not deleted.

A driver that finds no pin records that the deletion is decided, and checks its lease after that. A
driver frozen after deciding may delete later, when fenced. So the next attempt carries out decided
deletions first, before it writes its fence list, whatever pins there are: they came too late, or
were to be ignored. A deletion that was only announced is stopped by the lease check.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import partial

from train_core.storage.coordination.pins import DELETION, FoundPin, all_pins, pins_of, write_pin
from train_core.storage.objects.store import Store
from train_core.storage.records.names import PINS, CheckpointName, PinName


@contextmanager
def deleting(
    store: Store,
    checkpoint: CheckpointName,
    attempt: int,
    *,
    ignored: Collection[str] = (),
    is_decided: bool = False,
) -> Iterator[list[FoundPin]]:
    """Announce a deletion, and give the valid pins: step back from them. If none, it is decided.

    `ignored` are the keys of pins that need not be respected. One that `is_decided` already is
    another attempt's, which is carried out in its stead.
    """
    key = f"{PINS}/{PinName(checkpoint, f'{DELETION}-a{attempt:04d}')}"
    announce = partial(write_pin, store, key, "deletion", attempt=attempt, is_lasting=False)
    announce(decided=is_decided)
    try:
        others = [
            found
            for found in ([] if is_decided else pins_of(store, str(checkpoint)))
            if found.is_valid and not found.is_deletion and found.key not in ignored
        ]
        if not (others or is_decided):
            announce(decided=True)
        yield others
    finally:
        store.delete(key)


def decided(store: Store) -> list[CheckpointName]:
    """The checkpoints that a replaced attempt may still delete. Raises StorageError."""
    found = (
        CheckpointName.parse(one.checkpoint)
        for one in all_pins(store)
        if one.is_valid and one.is_deletion and one.pin and one.pin.decided
    )
    return list(dict.fromkeys(name for name in found if name))
