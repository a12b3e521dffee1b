"""Servers that belong to one pipeline each, and fail: Prefect's, MLflow's and the storage's."""

from __future__ import annotations

import os
import signal
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Self

import psutil

from benchmarks.services import free_port, mlflow_server, prefect_server, server
from tests.chaos.servers.switch import Switch, Way

_SIGNALS = {Way.KILLED: signal.SIGKILL, Way.FROZEN: signal.SIGSTOP}


class Victim(ABC):
    """A server of one pipeline's own; it runs while this is entered."""

    environment: dict[str, str]
    """What the pipeline is told of it."""

    @abstractmethod
    def fail(self, way: Way, flow_pid: int) -> None:
        """Have it fail so; the flow's process has that pid."""

    @abstractmethod
    def mend(self) -> None:
        """Have it answer again; nothing if it does."""

    def __enter__(self) -> Self:
        return self

    @abstractmethod
    def __exit__(self, *_: object) -> None:
        """End it."""


class EmbeddedPrefect(Victim):
    """The server that the command line starts; nobody but the product can start it again."""

    def __init__(self, home: Path) -> None:
        self.environment = {"PREFECT_HOME": str(home / "prefect")}
        self._frozen: list[psutil.Process] = []

    def fail(self, way: Way, flow_pid: int) -> None:
        """Kill or freeze it."""
        children = psutil.Process(flow_pid).children()
        found = [one for one in children if _is(one, "prefect.server")]
        assert found, "there is no server of Prefect's to strike"
        for one in found:
            one.send_signal(_SIGNALS[way])
        self._frozen = found if way is Way.FROZEN else []

    def mend(self) -> None:
        """Wake it up if it is frozen."""
        _signal(self._frozen, signal.SIGCONT)

    def __exit__(self, *_: object) -> None:
        """The command that started it has ended it."""


class RealServer(Victim):
    """A server on a port of its own, that is started again there."""

    def __init__(self, serve: Callable[[int], AbstractContextManager[str]]) -> None:
        self._serve, self.port = serve, free_port()
        self._running = ExitStack()

    def start(self) -> None:
        """Start it; it answers when this returns."""
        self.url = self._running.enter_context(self._serve(self.port))

    def stop(self) -> None:
        _signal(self._processes(), signal.SIGCONT)
        self._running.close()

    def fail(self, way: Way, flow_pid: int) -> None:
        """Kill or freeze it, with the processes that it started."""
        _signal(self._processes(), _SIGNALS[way])

    def mend(self) -> None:
        """Start it again if it was killed, wake it up if it is frozen."""
        found = self._processes()
        if found:
            _signal(found, signal.SIGCONT)
        else:
            self.stop()
            self.start()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _processes(self) -> list[psutil.Process]:
        ours = psutil.Process().children()
        roots = [one for one in ours if _is(one, str(self.port))]
        return [one for root in roots for one in (root, *root.children(recursive=True))]


class OwnPrefect(RealServer):
    """A Prefect server elsewhere, behind a switch."""

    def __init__(self, home: Path) -> None:
        super().__init__(partial(prefect_server, home))
        self.switch = Switch(f"http://127.0.0.1:{self.port}")

    def fail(self, way: Way, flow_pid: int) -> None:
        """As it says."""
        if way in _SIGNALS:
            super().fail(way, flow_pid)
        else:
            self.switch.turn(way)

    def mend(self) -> None:
        """Have it answer again, at the same address."""
        super().mend()
        self.switch.turn(None)

    def __enter__(self) -> Self:
        super().__enter__()
        self.switch.__enter__()
        self.environment = {"PREFECT_API_URL": f"{self.switch.url}/api"}
        return self

    def __exit__(self, *_: object) -> None:
        self.switch.__exit__()
        super().__exit__()


class OwnMlflow(RealServer):
    def __init__(self, home: Path) -> None:
        super().__init__(partial(mlflow_server, home))
        self.environment = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{self.port}"}


class OwnGateway(RealServer):
    """What answers S3's requests, before the store of `tests/object-store.sh` in `store`.

    The store has another one, by which others go on while this one is away.
    """

    def __init__(self, home: Path, store: Path) -> None:
        super().__init__(partial(_gateway, home, store))
        self.environment = {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.port}"}


@contextmanager
def _gateway(folder: Path, store: Path, port: int) -> Iterator[str]:
    url = f"http://127.0.0.1:{port}"
    command = [
        *("radosgw", "-f", "-c", str(store / "ceph.conf"), "-n", f"client.port-{port}"),
        *("--rgw-frontends", f"beast endpoint=127.0.0.1:{port}"),
    ]
    path = f"/usr/sbin:{os.environ['PATH']}"
    with server(command, f"{url}/", folder / "gateway.log", PATH=path):
        yield url


def _is(process: psutil.Process, what: str) -> bool:
    with suppress(psutil.Error):
        is_zombie = process.status() == psutil.STATUS_ZOMBIE
        return not is_zombie and any(what in argument for argument in process.cmdline())
    return False


def _signal(processes: list[psutil.Process], number: signal.Signals) -> None:
    for one in processes:
        with suppress(psutil.NoSuchProcess):
            one.send_signal(number)
