"""Which process holds a lease or a pin, and whether it still runs."""

from __future__ import annotations

import os
import socket
import uuid
from functools import cache
from pathlib import Path
from typing import Self

import psutil
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat

from train_core.storage.records.documents import Text


class Holder(BaseModel):
    """The process that holds a lease or a pin."""

    model_config = ConfigDict(frozen=True)

    host: Text
    machine: Text
    pid: int = Field(ge=0, lt=2**31)
    process_started: NonNegativeFloat
    token: Text
    """Tells two holds apart, also those of one process."""

    @classmethod
    def here(cls) -> Self:
        """This process, under a token of its own."""
        return cls(
            host=socket.gethostname(),
            machine=_machine(),
            pid=os.getpid(),
            process_started=psutil.Process().create_time(),
            token=uuid.uuid4().hex,
        )

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"

    @property
    def is_local(self) -> bool:
        """Whether the process ran on this machine, so that its pid can be looked up."""
        return self.machine == _machine()

    @property
    def is_alive(self) -> bool:
        """Whether the process, which ran on this machine, still runs."""
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.process_started) < 1
            return same and bool(process.status() != psutil.STATUS_ZOMBIE)
        except psutil.NoSuchProcess:
            return False


@cache
def _machine() -> str:
    """This boot of this machine, and the namespace that pids are counted in."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    namespace = Path("/proc/self/ns/pid")
    if not boot.exists():
        return f"{socket.gethostname()}/{psutil.boot_time():.0f}"
    return f"{boot.read_text().strip()}/{namespace.readlink()}"
