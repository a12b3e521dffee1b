"""The proxy of the tests hands on what it should, and is as far away as it is told."""

from __future__ import annotations

import http.client
import http.server
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.storage.doubles.fault_proxy import SLOW_DOWN, Fault, FaultProxy, Kind
from tests.web import served

LARGE = os.urandom(3 * 2**20)


class Server(http.server.BaseHTTPRequestHandler):
    """Says back the body that it was sent, or a large one, in chunks if it is asked for them."""

    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        self.say(self.rfile.read(int(self.headers["Content-Length"])))

    def do_GET(self) -> None:
        if self.path != "/chunks":
            self.say(LARGE)
            return
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for at in range(0, len(LARGE), 1000):
            piece = LARGE[at : at + 1000]
            self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        self.wfile.write(b"0\r\n\r\n")

    def say(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Host", self.headers["Host"])
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def upstream() -> Iterator[str]:
    with served(Server) as url:
        yield url


def ask(url: str, data: bytes | None = None) -> tuple[bytes, str | None]:
    """The body and the host that the server was asked for."""
    request = urllib.request.Request(url, data, method="PUT" if data else "GET")
    with urllib.request.urlopen(request, timeout=20) as answer:
        return answer.read(), answer.headers["X-Host"]


def test_questions_and_answers_are_handed_on_as_they_are(upstream: str) -> None:
    with FaultProxy(upstream) as proxy:
        body, host = ask(f"{proxy.url}/x", LARGE)
        assert body == LARGE
        assert host == proxy.url.removeprefix("http://")  # what the client signed
        assert ask(f"{proxy.url}/x")[0] == LARGE
        assert ask(f"{proxy.url}/chunks")[0] == LARGE


@pytest.mark.parametrize("kind", [kind for kind in Kind if kind is not Kind.REFUSE])
@pytest.mark.parametrize("path", ["x", "chunks"])
def test_a_fault_meets_the_request_it_is_for(upstream: str, kind: Kind, path: str) -> None:
    with FaultProxy(upstream) as proxy:
        proxy.schedule.add(Fault(kind, method="GET", target=path, skip=1))
        assert ask(f"{proxy.url}/y", b"other")[0] == b"other"
        assert ask(f"{proxy.url}/{path}")[0] == LARGE
        request = urllib.request.Request(f"{proxy.url}/{path}")
        with pytest.raises((OSError, http.client.HTTPException)):
            urllib.request.urlopen(request, timeout=0.5).read()
        assert proxy.schedule.hits == [f"GET /{path}"]
        assert ask(f"{proxy.url}/{path}")[0] == LARGE


def test_a_refused_request_gets_the_faults_own_answer(upstream: str) -> None:
    with FaultProxy(upstream) as proxy:
        proxy.schedule.add(Fault(Kind.REFUSE))
        with pytest.raises(urllib.error.HTTPError, match="503") as raised:
            ask(f"{proxy.url}/x", LARGE)
        assert raised.value.read() == SLOW_DOWN
        raised.value.close()
        assert ask(f"{proxy.url}/x", b"again")[0] == b"again"


def test_far_away_is_slow(upstream: str) -> None:
    with FaultProxy(upstream, latency_s=0.2, bytes_per_s=6 * 2**20) as proxy:
        begin = time.monotonic()
        ask(f"{proxy.url}/x")
        assert time.monotonic() - begin >= 0.2 + 0.5  # 3 MiB at 6 MiB/s


def test_it_can_be_started_alone(upstream: str) -> None:
    command = [sys.executable, "-m", "tests.storage.doubles.fault_proxy", "--upstream", upstream]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        assert ask(f"{url}/x", b"body")[0] == b"body"
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
