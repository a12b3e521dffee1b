"""The lease: which attempt may write to a run, and whether its process still lives.

`lease/0007.json` is created once; its number is the fencing token. The holder moves a counter
in `lease/0007-beat.json`; an observer on another host judges a standstill on its own monotonic
clock.

The lease is checked before each commit, in `run_writer.py`. A commit that slips in after the check
is ignored: it is not on the newer attempt's list (`fence_list.py`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from train_core.errors import CheckpointError, FencedError, RunBusyError
from train_core.storage.coordination.heartbeat import Heartbeat, HeartbeatSender, standing_still
from train_core.storage.coordination.holder import Holder, Life, judge
from train_core.storage.objects.retry_policy import SHORT, RetryPolicy
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import (
    LARGEST_NUMBER,
    SMALL_BYTES,
    Count,
    Text,
    read_document,
)
from train_core.storage.records.names import LEASES, LeaseName
from train_core.timing import TIMING, CoordinationTiming


class LeaseHeartbeat(Heartbeat):
    """The heartbeat of a lease's holder, and whether the holder has released the run."""

    counter: Count = 0
    released: bool = False
    end: Text = ""
    """How the run ended as it was given free: FINISHED, FAILED, KILLED; empty: it is not known."""


@dataclass
class Lease:
    """The right to write to a run, held by this process."""

    store: Store
    run: str
    attempt: int
    counter: int = 0
    end: str = ""
    """How the run ended before, if that is known; to be set anew before the release."""
    holder: Holder = field(default_factory=Holder.here)
    timing: CoordinationTiming = TIMING.coordination
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def send_heartbeat(self) -> None:
        """Move the heartbeat; call it every `timing.heartbeat_s`."""
        with self._lock:
            self.counter += 1
            self._write_heartbeat(self.attempt, released=False)

    def release(self) -> None:
        """Give the run free: the next attempt need not wait for a standstill."""
        with self._lock:
            self._write_heartbeat(self.attempt, released=True)

    def advance(self) -> None:
        """Go on to this holder's next attempt; the run is never free meanwhile.

        Raises FencedError if somebody else took the run.
        """
        key = f"{LEASES}/{LeaseName(self.attempt + 1)}"
        # Heartbeats go on meanwhile, as a storage may take long.
        try:
            # Every try writes the same bytes, so a create whose answer was lost is recognised as
            # ours.
            self.store.create(key, self.holder.model_dump_json().encode())
        except FileExistsError as error:
            raise FencedError(self.attempt, newest_attempt(self.store)) from error
        with self._lock:
            self.attempt += 1

    def release_earlier(self) -> None:
        """Show that nothing more of the attempt before can count: what it left can be deleted."""
        # No later heartbeat repeats this, so it has the store's own retry policy; and it is written
        # without the lock, so that heartbeats go on.
        before, retry_policy = self.attempt - 1, self.store.retry_policy
        self._write_heartbeat(before, released=True, retry_policy=retry_policy)

    def _write_heartbeat(
        self, attempt: int, *, released: bool, retry_policy: RetryPolicy = SHORT
    ) -> None:
        # By default a heartbeat is given up soon: the next one is due, and a driver that is about
        # to end does not wait for a storage that is away.
        end = self.end if released else ""
        heartbeat = LeaseHeartbeat(counter=self.counter, released=released, end=end)
        self.store.with_retries(retry_policy).write(
            _heartbeat_key(attempt), heartbeat.model_dump_json().encode()
        )


def acquire(
    store: Store, run: str, above: int = 0, *, timing: CoordinationTiming = TIMING.coordination
) -> Lease:
    """Take the run for a new attempt, or raise RunBusyError.

    Attempts up to `above` count as done: their files were copied here.

    A holder that released it, or that ran on this machine and is dead, is followed at once; one
    elsewhere is followed when its heartbeat stands still for `timing.standstill_s`, and longer
    where reading it is slow.
    """
    me = Holder.here()
    while True:
        newest = newest_attempt(store)
        end = wait_until_free(store, run, newest, timing) if newest else ""
        attempt = max(newest, above) + 1
        if attempt > LARGEST_NUMBER:
            raise CheckpointError(
                f"{store.uri(f'{LEASES}/{LeaseName(newest)}')} is no lease of evertrain's: no run "
                "has so many attempts. Delete it"
            )
        try:
            store.create(f"{LEASES}/{LeaseName(attempt)}", me.model_dump_json().encode())
        except FileExistsError:
            continue
        return Lease(store, run, attempt, end=end, holder=me, timing=timing)


def newest_attempt(store: Store) -> int:
    """The number of the newest lease; 0 if there is none."""
    parsed = (LeaseName.parse(name) for name in store.names(LEASES))
    return max((name.attempt for name in parsed if name), default=0)


def check(store: Store, attempt: int) -> None:
    """Raise FencedError if a newer attempt than `attempt` has the run."""
    newest = newest_attempt(store)
    if newest > attempt:
        raise FencedError(attempt, newest)


def holder_of(store: Store) -> Holder | None:
    """The process that drives the run now; None if none does, as far as this machine can see."""
    return holder_and_end(store)[0]


def holder_and_end(store: Store) -> tuple[Holder | None, str]:
    """The process as of `holder_of`; if there is none, how the run ended, as of `end_of`."""
    attempt = newest_attempt(store)
    if not attempt:
        return None, ""
    heartbeat = _heartbeat(store, attempt)
    if heartbeat.released:
        return None, heartbeat.end
    holder = _holder(store, attempt)
    return (None if judge(holder) is Life.DEAD else holder), ""


def read(store: Store, attempt: int) -> tuple[Holder, LeaseHeartbeat]:
    """Which process had the run as that attempt, and its heartbeat.

    Raises CheckpointError if one of the two cannot be read, FileNotFoundError if there is no lease.
    """
    return _holder(store, attempt), _heartbeat(store, attempt)


def end_of(store: Store, attempt: int) -> str:
    """How the run ended as the attempt gave it free: FINISHED, FAILED, KILLED; empty: unknown."""
    heartbeat = _heartbeat(store, attempt)
    return heartbeat.end if heartbeat.released else ""


def is_over(store: Store, attempt: int, newest: int | None = None) -> bool:
    """Whether nothing more of the attempt can count, and its process is gone as far as can be told.

    `newest` is the newest attempt; giving it spares a listing. A process that this machine cannot
    look at counts as gone once a newer attempt has the run: its heartbeat stood still.
    """
    if _heartbeat(store, attempt).released:
        return True
    try:
        holder = _holder(store, attempt)
    except FileNotFoundError:
        # Nobody ever drove under this number: the files were copied here by a fork.
        return True
    is_replaced = attempt < (newest_attempt(store) if newest is None else newest)
    return judge(holder, stands_still=is_replaced or None) is Life.DEAD


@contextmanager
def alive_until_released(held: Lease) -> Iterator[None]:
    """Send heartbeats while the block runs; then free the run."""
    try:
        with alive(held):
            yield
    finally:
        held.release()


@contextmanager
def alive(held: Lease) -> Iterator[None]:
    """Send heartbeats, from a thread of its own, while the block runs."""
    sender = HeartbeatSender(held.send_heartbeat, held.timing.heartbeat_s)
    sender.start()
    try:
        yield
    finally:
        sender.stop()


def wait_until_free(
    store: Store, run: str, attempt: int, timing: CoordinationTiming = TIMING.coordination
) -> str:
    """Return when nobody drives the run any more: how it ended, if that is known.

    Raises RunBusyError, which names the holder, within seconds if one does.
    """
    holder, heartbeat = read(store, attempt)
    begin = time.monotonic()
    while (life := judge(holder, has_ended=heartbeat.released)) is Life.ALIVE:
        if time.monotonic() - begin > timing.dying_grace_s:
            raise RunBusyError(run, str(holder))
        time.sleep(timing.lease_poll_interval_s)
        heartbeat = _heartbeat(store, attempt)
    if life is Life.UNKNOWN:
        read_again = partial(_heartbeat, store)
        still = standing_still(store, {attempt: heartbeat}, read_again, timing.standstill_s, timing)
        if not still:
            heartbeat = read_again(attempt)
        life = judge(holder, has_ended=heartbeat.released, stands_still=bool(still))
    if life is not Life.DEAD:
        raise RunBusyError(run, str(holder))
    return heartbeat.end if heartbeat.released else ""


def _holder(store: Store, attempt: int) -> Holder:
    key = f"{LEASES}/{LeaseName(attempt)}"
    return read_document(store, Holder, key, "a lease", max_bytes=SMALL_BYTES)[0]


def _heartbeat(store: Store, attempt: int) -> LeaseHeartbeat:
    try:
        key = _heartbeat_key(attempt)
        what = "a lease's heartbeat"
        return read_document(store, LeaseHeartbeat, key, what, max_bytes=SMALL_BYTES)[0]
    except FileNotFoundError:
        return LeaseHeartbeat()


def _heartbeat_key(attempt: int) -> str:
    return f"{LEASES}/{attempt:04d}-beat.json"
