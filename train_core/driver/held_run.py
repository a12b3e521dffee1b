"""A run that this driver has: its lease, kept alive by heartbeats, and its supervisor."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Self

from train_core.driver.attempts.supervisor import Supervisor
from train_core.errors import StorageError
from train_core.policy.end_status import EndStatus
from train_core.rank.distributed.pace import Pace
from train_core.storage.cleanup.dead_scorers import clearing_dead_scorers
from train_core.storage.cleanup.orphans import delete_orphans_of_the_dead
from train_core.storage.coordination import lease
from train_core.storage.coordination.lease import Lease
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt
from train_core.timing import TIMING, Timing

_log = logging.getLogger("train_core.driver")


class HeldRun:
    """A run from the moment that its lease is taken until it is released."""

    def __init__(self, folder: RunFolder, held: Lease, timing: Timing = TIMING) -> None:
        self.lease = held
        self.supervisor = Supervisor(folder, held, timing)
        self.pace: Pace | None = None
        """That of who follows the training."""
        self._folder = folder
        self._alive = ExitStack()

    @classmethod
    def take(cls, folder: RunFolder, job: str = "", timing: Timing = TIMING) -> Self:
        """Begin an attempt at the run, and delete what dead ones left.

        `job`: the Ray job that runs this driver; empty on one machine. Raises RunBusyError if
        another driver has the run.
        """
        run = cls(folder, begin_attempt(folder, timing=timing.coordination), timing)
        try:
            run._alive.enter_context(lease.alive(run.lease))
            run._alive.enter_context(clearing_dead_scorers(folder, job, timing=timing.coordination))
            run.delete_orphans()
        except BaseException:
            # The caller has nothing yet with which to end the heartbeats.
            run.release(EndStatus.FAILED)
            raise
        return run

    @property
    def attempt(self) -> int:
        """The newest attempt that was begun."""
        return self.lease.attempt

    @property
    def writer(self) -> RunWriter:
        """Changes the run in the name of that attempt."""
        return RunWriter(self._folder, self.attempt)

    def check(self) -> None:
        """Raise FencedError if a newer attempt has the run, and StoppedError if it shall end."""
        self.supervisor.check()

    def write(self, key: str, data: bytes) -> None:
        """Write an object of the run. Raises what `check` does."""
        self.check()
        self.writer.write(key, data)

    def delete_orphans(self) -> None:
        """Delete what earlier attempts left without a commit."""
        delete_orphans_of_the_dead(self.writer)

    def stop_heartbeats(self) -> None:
        """Show no more that this driver lives."""
        self._alive.close()

    def release(self, end: EndStatus) -> None:
        """Free the run, which ended so, for the next driver."""
        self.stop_heartbeats()
        self.lease.end = end
        try:
            self.lease.release()
        except StorageError as error:
            _log.warning("the lease was not released: %s", error)
