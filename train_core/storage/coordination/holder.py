"""Which process holds a lease or a pin, and whether it still runs."""

from __future__ import annotations

import os
import socket
import uuid
from enum import Enum
from functools import cache
from pathlib import Path
from typing import Self

import psutil
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat

from train_core.storage.records.documents import Text

PROC = Path("/proc")
_ZOMBIE_OR_DEAD = frozenset({"Z", "X", "x"})


class Life(Enum):
    """Whether a process runs, as far as this machine can tell."""

    ALIVE = "alive"
    DEAD = "dead"
    UNKNOWN = "unknown"
    """It ran on another machine, or the system hides it: only its heartbeat tells."""


class Holder(BaseModel):
    """The process that holds a lease or a pin."""

    model_config = ConfigDict(frozen=True)

    host: Text
    machine: Text
    pid: int = Field(ge=0, lt=2**31)
    process_started: NonNegativeFloat
    """By the wall clock, for machines without `/proc` and versions that know nothing else."""
    process_start: Text = ""
    """By a clock that nobody sets, as of `_start_of`; empty: there is no `/proc`."""
    token: Text
    """Tells two holds apart, also those of one process."""

    @classmethod
    def here(cls) -> Self:
        """This process, under a token of its own."""
        pid = os.getpid()
        found = _stat_of(pid)
        return cls(
            host=socket.gethostname(),
            machine=_machine(),
            pid=pid,
            process_started=psutil.Process().create_time(),
            process_start=_start_of(found) if found else "",
            token=uuid.uuid4().hex,
        )

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def is_local(self) -> bool:
        """Whether the process ran on this machine, so that its pid can be looked up."""
        return self.machine == _machine()

    @property
    def life(self) -> Life:
        """Whether the process still runs."""
        if not self.is_local:
            return Life.UNKNOWN
        try:
            found = _stat_of(self.pid)
        except OSError:
            return _life_of_hidden(self.pid)
        if found is None or not self.process_start:
            return self._life_by_wall_clock()
        start, (state, *_) = _start_of(found), found
        if _clock_of(start) != _clock_of(self.process_start):
            return Life.UNKNOWN
        is_it = start == self.process_start and state not in _ZOMBIE_OR_DEAD
        return Life.ALIVE if is_it else Life.DEAD

    def _life_by_wall_clock(self) -> Life:
        """For what an earlier version wrote, and for machines without `/proc`."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.process_started) < 1
            is_zombie = process.status() == psutil.STATUS_ZOMBIE
            return Life.ALIVE if same and not is_zombie else Life.DEAD
        except psutil.ZombieProcess:
            return Life.DEAD
        except psutil.NoSuchProcess:
            return _life_of_hidden(self.pid)
        except psutil.AccessDenied:
            return Life.UNKNOWN


def judge(holder: Holder, *, has_ended: bool = False, stands_still: bool | None = None) -> Life:
    """Whether the holder still has its lease or its pin. Everything that asks this asks here.

    - `has_ended`: what it holds is over by another's word (released, replaced, its job's calls are
      cleared): DEAD, whatever its process does.
    - Its process can be looked up on this machine: ALIVE or DEAD, as the process is.
    - `stands_still` decides about any other process: whether its heartbeat stood still for long
      enough to be dead, or moved; None: nobody has observed it, and the answer is UNKNOWN.
    """
    if has_ended:
        return Life.DEAD
    life = holder.life
    if life is not Life.UNKNOWN or stands_still is None:
        return life
    return Life.DEAD if stands_still else Life.ALIVE


def _stat_of(pid: int) -> list[str] | None:
    """The fields of `/proc/PID/stat` from the third on; None if the system has none.

    Raises OSError if there is no such process, or if it is hidden.
    """
    if not (PROC / "self" / "stat").exists():
        return None
    # The second field, the program's name in brackets, may hold blanks and brackets.
    return (PROC / str(pid) / "stat").read_text(errors="replace").rpartition(")")[2].split()


def _start_of(stat: list[str]) -> str:
    """When the process started, in the system's ticks, and the clock that they are counted by.

    A time namespace has a clock of its own. The wall clock has no part in either.
    """
    try:
        clock = str((PROC / "self" / "ns" / "time").readlink())
    except OSError:  # a kernel without time namespaces
        clock = ""
    return f"{stat[19]} {clock}"


def _clock_of(start: str) -> str:
    return start.partition(" ")[2]


def _life_of_hidden(pid: int) -> Life:
    """Of a process that cannot be looked at: `/proc` may hide what other users run (`hidepid`)."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return Life.DEAD
    except OSError:  # it belongs to another user
        pass
    return Life.UNKNOWN


@cache
def _machine() -> str:
    """This boot of this machine, and the namespace that pids are counted in."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    namespace = Path("/proc/self/ns/pid")
    if not boot.exists():
        return f"{socket.gethostname()}/{psutil.boot_time():.0f}"
    return f"{boot.read_text().strip()}/{namespace.readlink()}"
