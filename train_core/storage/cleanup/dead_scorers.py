"""What jobs left that only scored and died: they had no lease, so no attempt follows them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

from train_core.errors import EvertrainError
from train_core.storage.cleanup.orphans import delete_unfinished_results
from train_core.storage.coordination import pins
from train_core.storage.coordination.heartbeat import standing_still
from train_core.storage.coordination.job_mailbox import Mailbox, heartbeats_of_scorers
from train_core.storage.objects.retry_policy import SHORT
from train_core.storage.run_folder import RunFolder
from train_core.timing import TIMING, CoordinationTiming

_log = logging.getLogger(__name__)


@contextmanager
def clearing_dead_scorers(
    folder: RunFolder, own: str = "", *, timing: CoordinationTiming = TIMING.coordination
) -> Iterator[None]:
    """Delete, at the end, what jobs left that only scored and died together with their callers.

    Such a job has no lease, so no attempt follows it. It is dead if none of its heartbeats has
    moved since the beginning, nor while it is observed for `timing.mailbox_standstill_s` more. If
    the storage fails, all is left to the next call. `own` is the job that calls, if one does.
    """
    heartbeats: dict[str, dict[str, int]] = {}
    with _or_left_to_the_next():
        heartbeats = heartbeats_of_scorers(folder.store, own)
    yield
    if heartbeats:
        with _or_left_to_the_next():
            _clear_dead_scorers(folder, heartbeats, timing)


def _clear_dead_scorers(
    folder: RunFolder, before: dict[str, dict[str, int]], timing: CoordinationTiming
) -> None:
    # A driver that is about to end does not wait for a storage that does not answer.
    folder = folder.with_retries(SHORT)
    store = folder.store

    def read(job: str) -> dict[str, int]:
        return Mailbox(store, job).heartbeats()

    # After an outage, heartbeats may not have come to move again: they are observed from here on.
    for job in standing_still(store, before, read, timing.mailbox_standstill_s, timing):
        Mailbox(store, job).clear()
        pins.sweep_ended(store)
        delete_unfinished_results(folder)
        _log.info("deleted what the dead job %s left", job)


@contextmanager
def _or_left_to_the_next() -> Iterator[None]:
    try:
        yield
    except (OSError, EvertrainError) as error:
        _log.warning("what a dead job left could not be deleted: %s", error)
