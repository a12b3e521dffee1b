from __future__ import annotations

import http.server
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from tests.chaos.servers.switch import Mode, Switch


class Hello(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def switch() -> Iterator[Switch]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hello) as server:
        serving = threading.Thread(target=server.serve_forever, args=(0.05,))
        serving.start()
        try:
            with Switch(server.server_address[1]) as switch:
                yield switch
        finally:
            server.shutdown()
            serving.join()


def get(switch: Switch) -> bytes | int:
    try:
        with urllib.request.urlopen(f"{switch.url}/there", timeout=1) as answer:
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        error.close()
        return error.code


def test_each_request_is_answered_as_the_switch_stands(switch: Switch) -> None:
    assert get(switch) == b"hello"
    switch.turn(Mode.ANSWERS_500)
    assert get(switch) == 500
    switch.turn(Mode.ANSWERS_401)
    assert get(switch) == 401
    switch.turn(Mode.SILENT)
    with pytest.raises(TimeoutError):
        get(switch)
    switch.turn(Mode.PASS)
    assert get(switch) == b"hello"
    assert switch.missed == ["GET /there HTTP/1.1"] * 3
