"""Deleting what broken attempts left, while another one trains."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from train_core.errors import CheckpointError, FencedError
from train_core.storage.cleanup.orphans import (
    delete_orphans_of_the_dead,
    delete_uncommitted_checkpoints,
)
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter

_log = logging.getLogger("train_core.driver")


class OrphanDeletion:
    """Deletes what earlier attempts of one driver left without a commit.

    While an attempt runs, a thread deletes the large part: checkpoints that were not committed.
    Nothing waits for it. The rest, which is small, is deleted when nobody trains.
    """

    def __init__(self, folder: RunFolder, after_s: float) -> None:
        self._folder, self._after_s = folder, after_s
        self._are_left = False
        self._timers: list[threading.Timer] = []
        """Those that wait, or delete."""

    def note(self) -> None:
        """Note that an attempt is over, which may have left something."""
        self._are_left = True

    @contextmanager
    def deleting(self, attempt: int, fenced: Future[Any]) -> Iterator[None]:
        """Delete checkpoints soon, if the block, in which this attempt trains, goes on for long.

        What is being deleted as it ends is deleted on. `fenced` has a result once earlier attempts
        can commit nothing more.
        """
        if not self._are_left:
            yield
            return
        timer = threading.Timer(self._after_s, self._delete_checkpoints, [attempt, fenced])
        timer.name, timer.daemon = "orphans", True
        self._timers = [*filter(threading.Thread.is_alive, self._timers), timer]
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def finish(self, attempt: int) -> None:
        """Delete all that is left, in the name of this attempt. No rank of an earlier one lives."""
        for timer in self._timers:
            timer.join()
        if self._are_left:
            self._are_left = False
            delete_orphans_of_the_dead(RunWriter(self._folder, attempt))

    def _delete_checkpoints(self, attempt: int, fenced: Future[Any]) -> None:
        if fenced.exception():
            # The attempt ends with it.
            return
        try:
            delete_uncommitted_checkpoints(RunWriter(self._folder, attempt))
        except FencedError:
            # The next attempt begins with it again.
            return
        except (OSError, CheckpointError) as error:
            _log.warning("what an earlier attempt left could not be deleted yet: %s", error)
