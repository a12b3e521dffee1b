"""What all processes of a run of the tests share: one of them starts it, and ends it last."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import pytest

from benchmarks.services import prefect_server
from tests.plugins.order import LOCKS


class Shared:
    """The servers that a process of the tests uses together with the others, until `close`."""

    def __init__(self) -> None:
        self._used = ExitStack()

    def started_once(
        self, name: str, start: Callable[[Path], AbstractContextManager[str]]
    ) -> tuple[Path, str]:
        """A folder, and the address of the server that `start` has started in it.

        The first process that needs the server starts it. At its `close` it waits until no other
        process uses the server; one that comes later starts it again, in the same folder.
        """
        folder = Path(os.environ[LOCKS], name)
        folder.mkdir(exist_ok=True)
        address = folder / "address"
        starting, using = (
            self._used.enter_context((folder / lock).open("w")) for lock in ("starting", "using")
        )
        fcntl.flock(starting, fcntl.LOCK_EX)
        if not address.exists():
            address.write_text(self._used.enter_context(start(folder)))
            self._used.callback(address.unlink)
            self._used.callback(fcntl.flock, using, fcntl.LOCK_EX)
            # From then on nobody begins to use it.
            self._used.callback(fcntl.flock, starting, fcntl.LOCK_EX)
        fcntl.flock(using, fcntl.LOCK_SH)
        fcntl.flock(starting, fcntl.LOCK_UN)
        return folder, address.read_text()

    def close(self) -> None:
        """Use them no more, and end those that this process has started."""
        self._used.close()


THIS_PROCESS = Shared()


@pytest.fixture(scope="session")
def shared_prefect() -> tuple[Path, str]:
    """The folder and the API's address of a Prefect server for a whole run of the tests."""
    return THIS_PROCESS.started_once("prefect", prefect_server)


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    """Later than any test, whose time-out would include the wait for the others."""
    THIS_PROCESS.close()
