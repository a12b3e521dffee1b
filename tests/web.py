"""A plain web server, and a proxy that refuses, for tests that need one."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class QuietFiles(SimpleHTTPRequestHandler):
    """The files of a folder."""

    def log_message(self, *_: Any) -> None:
        """Say nothing: a test looks at what a command says."""


@contextmanager
def served(handler: Callable[..., BaseHTTPRequestHandler]) -> Iterator[str]:
    """The address of a server that answers as the handler does."""
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        # How often it looks whether it is to end: half a second by itself.
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextmanager
def refusing_proxy() -> Iterator[tuple[str, list[str]]]:
    """The address of a proxy that refuses everything, and what of this machine it was asked for.

    Libraries that look for a cloud's metadata ask it for those, at a link-local address.
    """
    asked: list[str] = []

    class Refuses(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if re.search(r"localhost|127\.0\.0\.1|::1", self.requestline):
                asked.append(self.requestline)
            self.send_error(403)

        do_POST = do_PATCH = do_CONNECT = do_GET  # noqa: N815 (as the server looks for them)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with served(Refuses) as url:
        yield url, asked
