"""Rank 0's journal entries that no checkpoint covers yet, and live.json about the newest step."""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Mapping
from typing import Any

from train_core.errors import StorageError
from train_core.storage.records.journal import Entry, finite
from train_core.storage.run_writer import RunWriter

_LIVE_EVERY_S = 0.5
_log = logging.getLogger(__name__)


class JournalBuffer:
    """Collects journal entries until a checkpoint covers them; shows the newest in live.json.

    `start` begins to write live.json in a background thread.
    """

    def __init__(self, writer: RunWriter, *, is_enabled: bool) -> None:
        self.pending: list[Entry] = []
        self._is_enabled = is_enabled
        self._writer = writer
        self._counters: dict[str, float] = {}
        self._notes: dict[str, str] = {}
        self._live: dict[str, Any] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._write_live, name="live", daemon=True)

    def start(self) -> None:
        """Start the thread that writes live.json."""
        if self._is_enabled:
            self._thread.start()

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
        if self._is_enabled:
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
