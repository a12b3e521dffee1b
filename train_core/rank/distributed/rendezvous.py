"""How the ranks of an attempt find each other: by a key-value store that lives in the driver.

No rank serves the others, so that any of them may die. The driver's requests reach the ranks by the
same store (`stop_requests.py`).
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import psutil
import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]  # the stub lacks them
from torch.distributed.distributed_c10d import _get_default_store, _world

from train_core.rank.distributed.group import is_of_another_rank

LOOPBACK = "127.0.0.1"
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
"""How long a rank waits for the others in a collective, as under Ray Train."""
CONNECT_TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True)
class Membership:
    """All that a process needs to become a rank of a group."""

    host: str
    port: int
    group: str
    """The name of the group: another one for each attempt."""
    rank: int
    world_size: int
    device: int = 0
    """The index of its GPU among those that it sees."""


class RendezvousStore:
    """A store of torch.distributed that listens on one address of this machine only.

    Its methods may be called from any thread.
    """

    def __init__(self, host: str) -> None:
        self._one_at_a_time = threading.Lock()
        listening = socket.socket()
        listening.bind((host, 0))
        self.address = str(listening.getsockname()[0]), int(listening.getsockname()[1])
        self._store: TCPStore | None = TCPStore(
            self.address[0],
            self.address[1],
            is_master=True,
            wait_for_workers=False,
            # torch closes it.
            master_listen_fd=listening.detach(),
        )

    def membership(self, group: str, rank: int, world_size: int, device: int) -> Membership:
        """What a process needs to become that rank of the group."""
        return Membership(*self.address, group, rank, world_size, device)

    def close(self) -> None:
        """Listen no more: who waits for a key gets an error."""
        with self._one_at_a_time:
            self._store = None

    def post(self, group: str, key: str, value: str) -> None:
        """Give a key of the group its value, which all see from here on.

        Raises ConnectionError if it is closed.
        """
        with self._one_at_a_time:
            store = PrefixStore(group, self._open())
            store.set(key, value)
            # IMPORTANT: `set` waits for no answer, and others ask by connections of their own.
            store.check([key])

    def read(self, group: str, key: str) -> str | None:
        """The value of a key of the group; None if it has none."""
        with self._one_at_a_time:
            store = PrefixStore(group, self._open())
            return str(store.get(key).decode()) if store.check([key]) else None

    def _open(self) -> TCPStore:
        if self._store is None:
            raise ConnectionError("the store is closed")
        return self._store


def connect(own: Membership, timeout: timedelta = CONNECT_TIMEOUT) -> PrefixStore:
    """A connection of its own to the store, for the keys of the group. Raises DistError."""
    store = TCPStore(own.host, own.port, is_master=False, timeout=timeout)
    return PrefixStore(own.group, store)


def own_address() -> str:
    """The address at which other ranks reach this one: that by which it reached their store."""
    store: Any = _get_default_store()
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return _address_towards(store.host)


@contextmanager
def process_group(own: Membership, *, uses_gpu: bool) -> Iterator[None]:
    """Be a rank of the group within the block.

    A group of CPUs is left if another rank's end has broken it. Otherwise a group that broke is not
    torn down, which may hang: its process is about to end.
    """
    choose_interfaces(own.host)
    if uses_gpu:
        torch.cuda.set_device(own.device)
    # torch names a group by how many this process has begun, also those that were not joined, and
    # finds the others by that name.
    _world.group_count = 0
    dist.init_process_group(
        "nccl" if uses_gpu else "gloo",
        store=connect(own),
        rank=own.rank,
        world_size=own.world_size,
        timeout=COLLECTIVE_TIMEOUT,
    )
    try:
        yield
    except Exception as error:
        if is_of_another_rank(error) and not uses_gpu:
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


def choose_interfaces(host: str) -> None:
    """Have gloo connect this process by the interface that leads to the host, unless one is set.

    On the loopback nccl does so, too; in a cluster it finds the fastest network.
    """
    # By itself gloo listens on the address of the machine's name, which may be the loopback's.
    for library in ("GLOO", "NCCL") if host == LOOPBACK else ("GLOO",):
        name = f"{library}_SOCKET_IFNAME"
        if name not in os.environ and (interface := _interface_towards(host)):
            os.environ[name] = interface


def _interface_towards(host: str) -> str | None:
    """The network interface by which this machine reaches the host, if it can be told."""
    try:
        address = _address_towards(host)
    except OSError:
        # There is no way to the host: the store says so when it is connected.
        return None
    found = (
        str(name)
        for name, addresses in psutil.net_if_addrs().items()
        if any(one.address == address for one in addresses)
    )
    return next(found, None)


def _address_towards(host: str) -> str:
    """The address of this machine by which it reaches the host."""
    # Nothing is sent: the system only chooses the address that it would be sent from.
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        asking.connect((host, 1))
        return str(asking.getsockname()[0])
