"""Prefect inside the command line: a temporary server, started while Ray starts.

Set before Prefect is imported, and only where the user has set nothing else; a worker that runs
a deployment does not come here.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import psutil

from flows.databases import begin_prefect

_LOOK_EVERY_S = 0.2
SEND_WITHIN_S = 15.0
"""How long Prefect's threads have at the end to send what they know."""
_GIVE_UP_WITHIN_S = 0.5
"""How long, if the server does not answer."""

prefect_is_lost = threading.Event()
"""Set when the command ends without Prefect's server."""


def configure(*, verbose: bool) -> None:
    """Set Prefect's settings for a flow that this process runs."""
    settings = {
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        # Beside other work its 20 s are not enough, and the flow would start a second server.
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        # The terminal belongs to the progress display; Prefect's API keeps the log.
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO" if verbose else "CRITICAL",
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    if "PREFECT_API_URL" not in os.environ:
        begin_prefect()


@contextmanager
def warming_up() -> Iterator[threading.Thread]:
    """Import Prefect and start its server in a thread, beside what the block does.

    Join the thread before the flow is run. The block's end waits for the import, also if it
    raises: a process that leaves while a thread loads compiled modules is aborted.
    """
    is_wanted = threading.Event()
    is_wanted.set()
    guard = threading.Thread(target=_guard_server, args=(is_wanted,))
    thread = threading.Thread(target=_start_prefect, args=(is_wanted,))
    guard.start()
    thread.start()
    try:
        yield thread
    finally:
        is_wanted.clear()
        thread.join()
        guard.join()


def leave(exit_code: int) -> NoReturn:
    """End the command; Prefect's threads, which send what they know, get a while for it."""

    def end() -> None:
        time.sleep(_GIVE_UP_WITHIN_S if prefect_is_lost.is_set() else SEND_WITHIN_S)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)

    if "prefect" in sys.modules:
        threading.Thread(target=end, name="leave", daemon=True).start()
    sys.exit(exit_code)


def _start_prefect(is_wanted: threading.Event) -> None:
    # What fails here fails again, and is told, when the flow is run.
    with contextlib.suppress(Exception):
        from prefect.client.orchestration import get_client

        import flows.retrain  # noqa: F401 (imported late: the driver starts first)

        if is_wanted.is_set():
            # Starts a server, where no other is named, and waits until it is up.
            get_client(sync_client=True)


def _guard_server(is_wanted: threading.Event) -> None:
    """Tie the server to this process as soon as there is one: it takes long to answer."""
    while is_wanted.is_set():
        for child in psutil.Process().children():
            with contextlib.suppress(psutil.Error):
                if any("prefect.server" in argument for argument in child.cmdline()):
                    _end_with_us(child.pid)
                    return
        time.sleep(_LOOK_EVERY_S)


def _end_with_us(pid: int) -> None:
    """See to it that the process ends when this one does, also when either was killed or frozen."""
    subprocess.Popen(
        ["sh", "-c", 'read -r _; kill -9 "$0"', str(pid)],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
