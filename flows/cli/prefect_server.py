"""Prefect inside the command line: a temporary server, started while Ray starts.

Its settings are made before Prefect is imported, and never override the user's. A worker that runs
a deployment does not use this module.
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

from evertrain_flows.databases import create_prefect_database
from evertrain_flows.timing import TIMING
from train_core.errors import ConfigError, StageError
from train_core.policy.logins import public_uri
from train_core.search_path import environment

_SERVE = """
import socket
import sys

import uvicorn
from prefect.server.api.server import create_app

config = uvicorn.Config(create_app(ephemeral=True, final=True), log_level="error", lifespan="on")
uvicorn.Server(config).run(sockets=[socket.socket(fileno=int(sys.argv[1]))])
"""
_SERVER_SETTINGS = {
    # No flow of ours uses block types, and registering them takes a second. A later server
    # of this home must not take them for registered.
    "PREFECT_SERVER_REGISTER_BLOCKS_ON_START": "false",
    "PREFECT_SERVER_MEMOIZE_BLOCK_AUTO_REGISTRATION": "false",
}
_MOST_SHOWN = 300
"""Characters of what the server says."""
prefect_is_lost = threading.Event()
"""Set when the command ends without Prefect's server."""


@contextmanager
def asking_named_server(stage: str) -> Iterator[None]:
    """Let the block ask the server at PREFECT_API_URL; without one, Prefect would start its own.

    Raises ConfigError if none is named, and StageError if it does not answer, or refuses.
    """
    # Imported late: Prefect takes a second.
    import httpx
    from prefect.settings import PREFECT_API_URL

    url = PREFECT_API_URL.value()
    if not url:
        raise ConfigError(f"no Prefect server is named for {stage}: set PREFECT_API_URL")
    try:
        yield
    except httpx.HTTPStatusError as error:
        said = f"answers {error.response.status_code}: {error.response.text[:_MOST_SHOWN]}"
        raise StageError(stage, f"{public_uri(url)} {said}") from error
    except httpx.HTTPError as error:
        raise StageError(stage, f"{public_uri(url)} does not answer: {error}") from error


def configure(*, verbose: bool) -> None:
    """Set Prefect's settings for a flow that this process runs."""
    settings = {
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "DO_NOT_TRACK": "1",
        "PREFECT_RESULTS_DEFAULT_SERIALIZER": "json",
        # One that Prefect starts itself has 20 s, which beside other work are not enough.
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        # The terminal belongs to the progress display; Prefect's API keeps the log.
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "INFO" if verbose else "CRITICAL",
    }
    for name, value in settings.items():
        os.environ.setdefault(name, value)
    if "PREFECT_API_URL" not in os.environ:
        create_prefect_database()


@contextmanager
def warming_up() -> Iterator[threading.Thread]:
    """Import Prefect and start a server in a thread, beside the work of the block.

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


def exit_command(exit_code: int) -> NoReturn:
    """End the command; Prefect's threads get a while to send their queues."""

    def end() -> None:
        is_lost = prefect_is_lost.is_set()
        time.sleep(TIMING.send_without_server_s if is_lost else TIMING.send_s)
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(exit_code)

    if "prefect" in sys.modules:
        threading.Thread(target=end, name="exit", daemon=True).start()
    sys.exit(exit_code)


def _start_prefect(is_wanted: threading.Event) -> None:
    # An error here is raised again, and shown, when the flow is run.
    with contextlib.suppress(Exception):
        from prefect.context import refresh_global_settings_context
        from prefect.settings import PREFECT_API_URL, PREFECT_SERVER_EPHEMERAL_ENABLED

        # Prefect can start a server itself, but it imports the whole server into this process.
        may_start = PREFECT_SERVER_EPHEMERAL_ENABLED.value() and not PREFECT_API_URL.value()
        server = _Server() if may_start else None
        if server:
            os.environ[PREFECT_API_URL.name] = server.api_url
            # Its pages are those that `evertrain ui` shows.
            os.environ.setdefault("PREFECT_UI_URL", "http://127.0.0.1:4200")
            refresh_global_settings_context()
        # Late, as the driver starts first, and beside the server's own start.
        import evertrain_flows.retrain  # noqa: F401 (the command runs it)

        if server:
            server.wait_until_up(is_wanted)


class _Server:
    """A server of Prefect's in a process of its own, which ends with this one."""

    def __init__(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            port, listens_at = listening.getsockname()[1], listening.fileno()
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SERVE, str(listens_at)],
                pass_fds=(listens_at,),
                env=environment(**_SERVER_SETTINGS),
                # Ctrl-C ends this process in order, and the server after it.
                start_new_session=True,
            )
        self.api_url = f"http://127.0.0.1:{port}/api"
        _end_with_us(self._process.pid)
        atexit.register(self._end)

    def wait_until_up(self, is_wanted: threading.Event) -> None:
        """Wait until the server answers, while it lives; end a server that is no longer wanted."""
        import httpx

        deadline = time.monotonic() + TIMING.server_start_s
        while self._process.poll() is None and time.monotonic() < deadline:
            if not is_wanted.is_set():
                self._process.kill()
                return
            # The socket listens already: a request waits for the server to begin.
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{self.api_url}/health", timeout=1).is_success:
                    return
            time.sleep(TIMING.server_poll_interval_s)

    def _end(self) -> None:
        """Let the server store its data, and end it."""
        self._process.terminate()
        try:
            self._process.wait(TIMING.server_end_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _end_with_us(pid: int) -> None:
    """Let the process end when this one does, also if either was killed or suspended."""
    subprocess.Popen(
        ["sh", "-c", 'read -r _; kill -9 "$0"', str(pid)],
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
