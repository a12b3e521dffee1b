"""Machines of a network on this one: network namespaces on a bridge, which can be cut off."""

from __future__ import annotations

import random
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Self

import psutil

from tests import commands

PREFIX = "evt"
"""With which the names of the interfaces outside of the machines begin."""


@dataclass(frozen=True)
class Machine:
    """A namespace with an address of its own."""

    namespace: str
    link: str
    """The bridge's end of its cable."""
    address: str

    def command(self, *command: str) -> list[str]:
        return ["ip", "netns", "exec", self.namespace, *command]

    def processes(self) -> list[psutil.Process]:
        """All that runs on it, also what has lost its parent."""
        found = []
        for pid in _ip("netns", "pids", self.namespace).split():
            with suppress(psutil.NoSuchProcess):
                found.append(psutil.Process(int(pid)))
        return found

    def cut_off(self) -> None:
        """Nothing reaches it any more, and nobody is told."""
        _ip("link", "set", self.link, "down")

    def connect(self) -> None:
        _ip("link", "set", self.link, "up")


class Network:
    """A bridge, which has an address of this machine, and the machines on it."""

    def __init__(self) -> None:
        # Two may be there at once, and names of links have 15 letters at most.
        self._name = f"{PREFIX}{random.randrange(16**4):04x}"
        self._subnet = f"10.{random.randrange(100, 250)}.{random.randrange(250)}"
        self._machines: list[Machine] = []

    @property
    def address(self) -> str:
        """Where the machines reach what runs beside them, outside of all namespaces."""
        return f"{self._subnet}.1"

    def machine(self) -> Machine:
        number = len(self._machines)
        name = f"{self._name}n{number}"
        machine = Machine(name, f"{self._name}v{number}", f"{self._subnet}.{number + 2}")
        _ip("netns", "add", name)
        self._machines.append(machine)
        _ip("link", "add", machine.link, "type", "veth", "peer", "name", "eth0", "netns", name)
        _ip("link", "set", machine.link, "master", self._name, "up")
        inside = ("-n", name)
        _ip(*inside, "addr", "add", f"{machine.address}/24", "dev", "eth0")
        _ip(*inside, "link", "set", "eth0", "up")
        _ip(*inside, "link", "set", "lo", "up")
        return machine

    def processes(self) -> list[psutil.Process]:
        return [process for machine in self._machines for process in machine.processes()]

    def __enter__(self) -> Self:
        """Open it; what then runs on its machines must have ended when it is left."""
        _ip("link", "add", self._name, "type", "bridge")
        _ip("addr", "add", f"{self.address}/24", "dev", self._name)
        _ip("link", "set", self._name, "up")
        return self

    def __exit__(self, *_: object) -> None:
        with ExitStack() as all_of_it:
            all_of_it.callback(_ip, "link", "delete", self._name)
            for machine in self._machines:
                # Its cable goes with it.
                all_of_it.callback(_ip, "netns", "delete", machine.namespace)


def _ip(*arguments: str) -> str:
    return commands.succeed(["ip", *arguments]).stdout
