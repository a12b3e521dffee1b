"""Prefect inside the command line: a temporary server, started while Ray starts.

Set before Prefect is imported, and only where the user has set nothing else; a worker that runs
a deployment does not come here. `python -m flows.embedded FD` is the server's process.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from flows.databases import begin_prefect

_UP_WITHIN_S = 120.0
_ENDS_WITHIN_S = 5.0
SEND_WITHIN_S = 10.0
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
        # The terminal belongs to the progress display; Prefect's API keeps the log.
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO" if verbose else "CRITICAL",
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    if "PREFECT_API_URL" not in os.environ:
        begin_prefect()


@contextmanager
def warming_up() -> Iterator[threading.Thread]:
    """Import Prefect and start a server in a thread, beside what the block does.

    Join the thread before the flow is run. The block's end waits for the import, also if it
    raises: a process that leaves while a thread loads compiled modules is aborted.
    """
    is_wanted = threading.Event()
    is_wanted.set()
    thread = threading.Thread(target=_start_prefect, args=(is_wanted,))
    thread.start()
    try:
        yield thread
    finally:
        is_wanted.clear()
        thread.join()


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
        from prefect.context import refresh_global_settings_context
        from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_EPHEMERAL_ENABLED

        # Prefect would start one, too, for which it loads all of the server into this process.
        may_start = PREFECT_SERVER_EPHEMERAL_ENABLED.value() and not PREFECT_API_URL.value()
        started = _start_server() if may_start else None
        import flows.retrain  # noqa: F401 (late: the driver starts first; the server meanwhile)

        if started and _has_come_up(*started, is_wanted):
            os.environ[PREFECT_API_URL.name] = started[1]
            refresh_global_settings_context()


def _start_server() -> tuple[subprocess.Popen[bytes], str]:
    """A server of Prefect's that ends with this process, and the address of its API."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port, listens_at = listening.getsockname()[1], listening.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.embedded", str(listens_at)],
            pass_fds=(listens_at,),
            # What they are for is not used here, and they take a second.
            env=os.environ | {"PREFECT_API_BLOCKS_REGISTER_ON_START": "false"},
            # Ctrl-C ends this process in order, and the server after it.
            start_new_session=True,
        )
    _end_with_us(process.pid)
    atexit.register(_end, process)
    return process, f"http://127.0.0.1:{port}/api"


def _has_come_up(server: subprocess.Popen[bytes], url: str, is_wanted: threading.Event) -> bool:
    """Wait until the server answers, as long as it lives and is wanted; whether it does."""
    import httpx

    deadline = time.monotonic() + _UP_WITHIN_S
    while is_wanted.is_set() and server.poll() is None and time.monotonic() < deadline:
        # The socket listens already: a request waits for the server to begin.
        with contextlib.suppress(httpx.TransportError):
            if httpx.get(f"{url}/health", timeout=1, trust_env=False).is_success:
                return True
    return False


def _end(server: subprocess.Popen[bytes]) -> None:
    """Let the server store what it has, and end it."""
    server.terminate()
    try:
        server.wait(_ENDS_WITHIN_S)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _end_with_us(pid: int) -> None:
    """See to it that the process ends when this one does, also when either was killed or frozen."""
    subprocess.Popen(
        ["sh", "-c", 'read -r _; kill -9 "$0"', str(pid)],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def main() -> None:
    """Serve Prefect's API, until SIGTERM, on the listening socket with the number given."""
    import uvicorn
    from prefect.server.api.server import create_app

    app = create_app(ephemeral=True, final=True)
    config = uvicorn.Config(app, log_level="error", lifespan="on")
    uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])


if __name__ == "__main__":
    main()
