"""The requests to stop of one attempt: its ranks ask here whether they shall stop, and its driver.

A request comes from `evertrain runs stop`, from the driver's program as it ends, or from the watch
over the cluster, which sees drained nodes and new ones (`cluster/scaling.py`). The driver
finds those of other programs in the run folder, and posts the newest request in its rendezvous
store, which needs no storage. The ranks find it there; ranks without a driver find it in the run
folder. A rank polls in a thread, so that a request is known during a validation or a wait as well.
Between steps the control message makes all ranks act on it after the same step.

SIGTERM of a worker (`cluster/worker_process.py`) is a request to move, which its rank finds by
itself. Where the others can train on without it, its rank tells the driver, which ends it. A worker
of a training function tells the driver, which asks all to move after the report under way.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import timedelta

from pydantic import ValidationError
from torch.distributed import Store  # type: ignore[attr-defined]  # the stub lacks it

from train_core.errors import AttemptLostError, EvertrainError
from train_core.inside import was_terminated
from train_core.policy.restarts import Asked
from train_core.rank.distributed.pace import TAKEN
from train_core.rank.distributed.rendezvous import Membership, RendezvousStore, connect
from train_core.storage.coordination.stop_request import StopRequest

STOP = "stop"
"""The key of the driver's newest request, in the store of the attempt."""
LOST = "lost"
"""The key of why the attempt is lost."""
_LEAVING = "leaving"
"""The first part of a key, before a rank's number: that rank's process got SIGTERM."""
_CONNECT_TIMEOUT = timedelta(seconds=3)
"""It is tried again at the next poll, and nobody waits for it once the driver is gone."""
_log = logging.getLogger(__name__)

StopSource = Callable[[], StopRequest | None]
"""Gives the newest request to an attempt, if there is one. Used by one thread.

Raises AttemptLostError, and EvertrainError or OSError if it cannot be read now.
"""


class StopRequests:
    """Knows the newest request to stop of one attempt. May be asked, and told, by any thread.

    Once it is started, a thread polls `source` every `poll_s`. With `logs`, which one rank has, it
    logs the request.
    """

    def __init__(self, source: StopSource, poll_s: float, *, logs: bool = False) -> None:
        self.newest: StopRequest | None = None
        """A request to end replaces one to move, and stands."""
        self._lost = ""
        """Why the attempt is lost; empty: it is not."""
        self._source = source
        self._poll_s = poll_s
        self._logs = logs
        self._since = 0.0
        self._send: Callable[[StopRequest], None] | None = None
        self._sent: StopRequest | None = None
        """The newest request that the ranks have."""
        self._one_at_a_time = threading.Lock()
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="stop-requests", daemon=True)

    @property
    def asked(self) -> Asked:
        """What the newest request asks for."""
        if self.newest is None:
            return Asked.NOTHING
        return Asked.MOVE if self.newest.goes_on else Asked.END

    @property
    def is_asked(self) -> bool:
        """Whether the attempt is to save and end."""
        return self.newest is not None

    def check_lost(self) -> None:
        """Raise AttemptLostError if the attempt is lost: for a rank that is in no collective."""
        if self._lost:
            raise AttemptLostError(self._lost)

    def is_older_than(self, limit_s: float) -> bool:
        """Whether the newest request came more than so many seconds ago."""
        return self.is_asked and time.monotonic() - self._since > limit_s

    def is_grace_over(self, grace_s: float) -> bool:
        """Whether a request to end came more than `grace_s` ago; one to move has no such limit."""
        return self.asked is Asked.END and self.is_older_than(grace_s)

    def ask_to_move(self, reason: str) -> None:
        """Ask the attempt to save and end, for another one."""
        self.ask(StopRequest(reason=reason, goes_on=True))

    def ask(self, request: StopRequest) -> None:
        """Ask the attempt to save and end; ignored where an earlier request outranks this one."""
        with self._one_at_a_time:
            if request.replaces(self.newest):
                if self._logs:
                    _log.info("asked to stop: %s; a last checkpoint is saved", request.reason)
                self._since, self.newest = time.monotonic(), request
                self._send_newest()

    def send_by(self, send: Callable[[StopRequest], None]) -> None:
        """Send each request to the ranks by this function, including one that came before.

        A request that cannot be sent is sent again at each poll.
        """
        with self._one_at_a_time:
            self._send = send
            self._send_newest()

    def start(self) -> None:
        """Start to poll."""
        self._thread.start()

    def poll(self) -> None:
        """Send what the ranks do not have yet, and ask the source once."""
        with self._one_at_a_time:
            self._send_newest()
        if self._lost:
            return
        if self.asked is Asked.END:
            # Nothing replaces it, and the source may keep who asks it waiting.
            return
        try:
            request = self._source()
        except AttemptLostError as error:
            self._lost = str(error)
            return
        except (EvertrainError, OSError) as error:
            _log.debug("the request to stop cannot be read: %s", error)
            return
        if request is not None:
            self.ask(request)

    def close(self) -> None:
        """End the thread. A thread that waits for its source is left behind."""
        self._is_closed.set()
        if self._thread.is_alive():
            self._thread.join(self._poll_s)

    def _follow(self) -> None:
        while not self._is_closed.is_set():
            self.poll()
            self._is_closed.wait(self._poll_s)

    def _send_newest(self) -> None:
        """Send the newest request, if there is one that the ranks do not have."""
        if self._send is None or self.newest is self._sent:
            return
        assert self.newest is not None, "a request stays, or is replaced"
        try:
            self._send(self.newest)
            self._sent = self.newest
        except Exception as error:  # noqa: BLE001 (whatever Ray or torch raises)
            _log.warning("the ranks cannot be asked to stop: %s", error)


class PostedByDriver:
    """The source that a driver's ranks have: what the driver has posted in its rendezvous store.

    If nothing is, a process that got SIGTERM asks to move; or, if it `can_hand_over`, it posts that
    it leaves, and the driver decides.

    It has a connection of its own, as two threads must not use one at the same time.
    """

    def __init__(self, own: Membership, can_hand_over: Callable[[], bool] = lambda: False) -> None:
        self._own, self._can_hand_over = own, can_hand_over
        self._has_asked_to_move = False
        self._store: Store | None = None
        self.taken: int | None = None
        """The step of the newest report that was taken; None: nobody is waited for (`pace`)."""

    def __call__(self) -> StopRequest | None:
        """The newest request, if there is one. Raises ConnectionError."""
        try:
            if self._store is None:
                self._store = connect(self._own, _CONNECT_TIMEOUT)
            if self._store.check([LOST]):
                raise AttemptLostError(self._store.get(LOST).decode())
            if self._store.check([TAKEN]):
                self.taken = int(self._store.get(TAKEN))
            if self._store.check([STOP]):
                return StopRequest.model_validate_json(self._store.get(STOP))
            # IMPORTANT: not once it has asked to move. It would be ended as it saves.
            hands_over = not self._has_asked_to_move and self._can_hand_over()
            if was_terminated() and hands_over:
                self._store.set(f"{_LEAVING}/{self._own.rank}", "")
                return None
        except (RuntimeError, ValidationError) as error:
            self._store = None
            raise ConnectionError(f"the driver's store cannot be read: {error}") from error
        if not was_terminated():
            return None
        self._has_asked_to_move = True
        return StopRequest(reason=f"rank {self._own.rank} got SIGTERM", goes_on=True)


def ranks_that_leave(rendezvous: RendezvousStore, group: str, world_size: int) -> set[int]:
    """The ranks of the group whose processes got SIGTERM, and hand over."""
    every = range(world_size)
    return {rank for rank in every if rendezvous.read(group, f"{_LEAVING}/{rank}") is not None}


def post_stop(store: RendezvousStore, group: str, request: StopRequest) -> None:
    """Post the request to all ranks of a group, including those that start later."""
    store.post(group, STOP, request.model_dump_json())
