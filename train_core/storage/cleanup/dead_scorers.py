"""What jobs left that only scored and died: they had no lease, so no attempt follows them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from train_core.errors import EvertrainError
from train_core.storage.cleanup.orphans import delete_unfinished_results
from train_core.storage.coordination import pins
from train_core.storage.coordination.heartbeat import HeartbeatObserver, probing_writes
from train_core.storage.coordination.job_mailbox import Mailbox, heartbeats_of_scorers
from train_core.storage.coordination.timing import TIMING, Timing
from train_core.storage.objects.retry_policy import SHORT
from train_core.storage.objects.store import Store
from train_core.storage.run_folder import RunFolder

_Observers = dict[str, HeartbeatObserver[dict[str, int]]]
"""By job: of its own heartbeat and those of its callers."""
_log = logging.getLogger(__name__)


@contextmanager
def clearing_dead_scorers(
    folder: RunFolder, own: str = "", *, timing: Timing = TIMING
) -> Iterator[None]:
    """Delete, at the end, what jobs left that only scored and died together with their callers.

    Such a job has no lease, so no attempt follows it. It is dead if none of its heartbeats has
    moved since the beginning, nor while it is observed for `timing.mailbox_standstill_s` more. If
    the storage fails, all is left to the next call. `own` is the job that calls, if one does.
    """
    observers: _Observers = {}
    with _or_left_to_the_next():
        found, now = heartbeats_of_scorers(folder.store, own), time.monotonic()
        observers = {job: HeartbeatObserver(counters, now) for job, counters in found.items()}
    yield
    if observers:
        with _or_left_to_the_next():
            _clear_dead_scorers(folder, observers, timing)


def _clear_dead_scorers(folder: RunFolder, observers: _Observers, timing: Timing) -> None:
    # A driver that is about to end does not wait for a storage that does not answer.
    folder = folder.with_retries(SHORT)
    store = folder.store
    if not (unmoved := _unmoved(store, observers)):
        return
    # After an outage, heartbeats may not have come to move again; one that begins here keeps them.
    begin, slowest_s = time.monotonic(), 0.0
    with probing_writes(store) as probe:
        while (
            time.monotonic() - begin < timing.mailbox_standstill_s + timing.slow_reads * slowest_s
        ):
            slowest_s = max(slowest_s, probe())
            time.sleep(timing.mailbox_poll_interval_s)
    for job in _unmoved(store, unmoved):
        Mailbox(store, job).clear()
        pins.sweep_ended(store)
        delete_unfinished_results(folder)
        _log.info("deleted what the dead job %s left", job)


def _unmoved(store: Store, observers: _Observers) -> _Observers:
    """The jobs of which no heartbeat has moved since the observation before."""
    return {
        job: observer
        for job, observer in observers.items()
        if not observer.observe(Mailbox(store, job).heartbeats(), time.monotonic())
    }


@contextmanager
def _or_left_to_the_next() -> Iterator[None]:
    try:
        yield
    except (OSError, EvertrainError) as error:
        _log.warning("what a dead job left could not be deleted: %s", error)
