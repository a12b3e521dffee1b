"""Journal entries that no checkpoint covers yet, and live.json about the newest step."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from train_core.errors import StorageError
from train_core.storage.records.journal import Entry, finite
from train_core.storage.records.names import CheckpointName
from train_core.storage.run_writer import RunWriter

_LIVE_EVERY_S = 0.5
_log = logging.getLogger(__name__)


@dataclass
class Uncommitted:
    """The entries after a commit, and how many of them each later checkpoint covers.

    Every rank has them, so that they outlive rank 0, which commits them.
    """

    follows: CheckpointName | None = None
    """The commit that covers all earlier entries; None: there are no earlier ones."""
    entries: list[Entry] = field(default_factory=list)
    _covered: dict[CheckpointName, int] = field(default_factory=dict)

    def cover(self, checkpoint: CheckpointName) -> None:
        """Note that this checkpoint, once it is committed, covers the entries so far."""
        self._covered[checkpoint] = len(self.entries)

    def after(self, commit: CheckpointName | None) -> list[Entry] | None:
        """The entries that follow this commit; None if they are not known."""
        if commit == self.follows:
            return list(self.entries)
        if commit not in self._covered:
            return None
        return self.entries[self._covered[commit] :]

    def commit(self, checkpoint: CheckpointName) -> None:
        """Drop the entries that this checkpoint covers; it is committed, and may be known so."""
        count = self._covered.pop(checkpoint, None)
        if count is None:
            return
        del self.entries[:count]
        self._covered = {name: n - count for name, n in self._covered.items() if n >= count}
        self.follows = checkpoint


class JournalBuffer:
    """Collects journal entries until a checkpoint covers them.

    With `shows_live`, which one rank has, `start` begins to write the newest to live.json in a
    background thread.
    """

    def __init__(self, writer: RunWriter, *, shows_live: bool) -> None:
        self.uncommitted = Uncommitted()
        self._shows_live = shows_live
        self._writer = writer
        self._counters: dict[str, float] = {}
        self._notes: dict[str, str] = {}
        self._live: dict[str, Any] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write_live, name="live", daemon=True)

    def start(self) -> None:
        """Start the thread that writes live.json."""
        if self._shows_live:
            self._thread.start()

    @property
    def pending(self) -> list[Entry]:
        """The entries that no commit covers, as far as is known."""
        return self.uncommitted.entries

    def add(
        self,
        step: int,
        metrics: Mapping[str, float],
        rates: Mapping[str, float] | None = None,
        *,
        texts: Mapping[str, str] | None = None,
        by_rank: Mapping[str, dict[str, float | None]] | None = None,
    ) -> None:
        """Record what was measured; training functions alone give `texts` and `by_rank`."""
        all_rates, self._counters = {**self._counters, **(rates or {})}, {}
        all_texts, self._notes = {**self._notes, **(texts or {})}, {}
        entry = Entry(
            step=step,
            time=time.time(),
            metrics=finite(metrics),
            rates=all_rates,
            texts=all_texts,
            by_rank=dict(by_rank or {}),
        )
        self.pending.append(entry)

    def note(self, name: str, text: str) -> None:
        """Say this of the machine with the next entry."""
        self._notes[name] = text

    def count(self, name: str, amount: float) -> None:
        """Increase a counter about the machine, not the training; the next entry has its sum."""
        self._counters[name] = self._counters.get(name, 0) + amount

    def show(self, **live: Any) -> None:
        """Publish these fields in live.json, which is written about twice a second."""
        self._live = {"stage": "train", "time": time.time(), **live}

    def forget(self, entries: list[Entry]) -> None:
        """Drop the oldest pending entries: a checkpoint covers them now."""
        assert self.pending[: len(entries)] == entries
        del self.pending[: len(entries)]

    def close(self, timeout_s: float | None = None) -> None:
        """Write the last state and end the thread; it is left behind after `timeout_s`."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _write_live(self) -> None:
        shown: dict[str, Any] = {}
        while not self._ended.wait(_LIVE_EVERY_S) or shown is not self._live:
            if shown is self._live:
                continue
            shown = self._live
            try:
                self._writer.write_live(json.dumps(shown).encode())
            except StorageError as error:
                # A hint for people: the journal has the truth.
                _log.debug("live.json was not written: %s", error)
