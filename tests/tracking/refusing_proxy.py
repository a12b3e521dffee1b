"""A proxy before an MLflow server, which answers some requests itself, as schedules say."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler
from urllib.parse import urlsplit

from tests.web import served


@dataclass
class Rule:
    """Requests whose method and path match, and whose body is large or matches, get the status."""

    status: int
    asked: str
    min_bytes: int = 0
    body: str = ""
    text: str = "<html>refused by the proxy</html>"
    times: int = 1_000_000
    """How many of them, from the first on."""
    met: int = 0
    """How many there were."""

    def answers(self, asked: str, body: bytes) -> bool:
        if not re.search(self.asked, asked) or len(body) < self.min_bytes:
            return False
        if self.body and not re.search(self.body.encode(), body):
            return False
        self.met += 1
        return self.met <= self.times


@dataclass
class Proxy:
    """The proxy's address and rules, and what was asked."""

    uri: str
    rules: list[Rule] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)
    before: Callable[[str], None] = lambda _: None
    """Called with each request before it is forwarded."""


@contextmanager
def proxy_of(server: str) -> Iterator[Proxy]:
    """A proxy that forwards to the server whatever no rule answers."""
    proxy = Proxy("")
    host = urlsplit(server).netloc

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            body = self._body()
            asked = f"{self.command} {self.path}"
            proxy.asked.append(asked)
            rule = next((one for one in proxy.rules if one.answers(asked, body)), None)
            if rule:
                self._send(rule.status, rule.text.encode(), "text/html")
                return
            proxy.before(asked)
            connection = HTTPConnection(host, timeout=60)
            own = {"Host", "Content-Length", "Transfer-Encoding", "Accept-Encoding"}
            kept = {name: text for name, text in self.headers.items() if name.title() not in own}
            connection.request(self.command, self.path, body, kept)
            answer = connection.getresponse()
            found = answer.read()
            connection.close()
            self._send(answer.status, found, answer.headers.get("Content-Type", ""))

        def _body(self) -> bytes:
            if "chunked" not in self.headers.get("Transfer-Encoding", ""):
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            # Of an empty file `requests` does not tell the length.
            parts = []
            while num_bytes := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(num_bytes))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def _send(self, status: int, body: bytes, kind: str) -> None:
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_request(self, *args: object) -> None:
            pass

    for method in ("GET", "POST", "PUT", "PATCH", "DELETE"):
        setattr(Handler, f"do_{method}", Handler._answer)
    with served(Handler) as url:
        proxy.uri = url
        yield proxy
