"""What only an object store can do wrong."""

from __future__ import annotations

import os
import socket
import socketserver
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import s3fs

from train_core.errors import StorageError
from train_core.storage.store import Store

pytestmark = pytest.mark.s3

PROBE = """
import sys
from train_core.storage.store import Store
try:
    Store(sys.argv[1]).probe()
except OSError as error:
    print(type(error).__name__, error)
"""


CREATE = """
import sys
from train_core.storage.store import Store
Store(sys.argv[1]).create("object", b"mine")
"""


class LosesFirstAnswer(socketserver.BaseRequestHandler):
    """Hands on what client and server say, but not that the first conditional PUT was done."""

    def handle(self) -> None:
        self.conditional = False
        url = urlsplit(os.environ["AWS_ENDPOINT_URL"])
        with socket.create_connection((url.hostname, url.port)) as upstream:
            answering = threading.Thread(target=self.answer, args=(upstream,))
            answering.start()
            while question := self.request.recv(2**16):
                self.conditional |= b"if-none-match" in question.lower()
                upstream.sendall(question)
            upstream.shutdown(socket.SHUT_WR)
            answering.join()

    def answer(self, upstream: socket.socket) -> None:
        while answer := upstream.recv(2**16):
            if self.conditional and b"HTTP/1.1 200" in answer and not self.server.lost.is_set():
                self.server.lost.set()
                break
            self.request.sendall(answer)
        self.request.shutdown(socket.SHUT_RDWR)


@contextmanager
def proxy_that_loses_an_answer() -> Iterator[socketserver.ThreadingTCPServer]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), LosesFirstAnswer) as server:
        server.lost = threading.Event()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def probe_elsewhere(url: str, **environment: str) -> str:
    """What a probe says in a process with other settings."""
    return subprocess.check_output(
        [sys.executable, "-c", PROBE, url], env=os.environ | environment, text=True, timeout=60
    )


def test_a_missing_bucket_is_named(object_store: str) -> None:
    with pytest.raises(
        StorageError, match=r"cannot create s3://no-such-bucket/run/.*: its bucket does not exist"
    ):
        Store("s3://no-such-bucket/run").probe()


def test_a_wrong_key_is_refused_with_the_servers_answer(object_store: str) -> None:
    said = probe_elsewhere(object_store, AWS_SECRET_ACCESS_KEY="wrong")
    assert said.startswith("StorageError cannot create s3://")
    assert "PermissionError" in said


def test_a_server_that_is_down_is_named(object_store: str) -> None:
    said = probe_elsewhere(object_store, AWS_ENDPOINT_URL="http://127.0.0.1:9")
    assert said.startswith("StorageError cannot create s3://")
    assert "http://127.0.0.1:9" in said


def test_an_object_that_marks_a_folder_is_not_in_it(object_store: str) -> None:
    store = Store(f"{object_store}/{uuid.uuid4().hex}")
    s3fs.S3FileSystem().pipe_file(store.path("folder") + "/", b"")
    store.write("folder/object", b"")
    assert store.names("folder") == ["object"]
    assert store.names() == ["folder"]


def test_an_object_whose_first_answer_was_lost_is_created_all_the_same(object_store: str) -> None:
    url = f"{object_store}/{uuid.uuid4().hex}"
    with proxy_that_loses_an_answer() as proxy:
        endpoint = f"http://127.0.0.1:{proxy.server_address[1]}"
        environment = os.environ | {"AWS_ENDPOINT_URL": endpoint}
        subprocess.run([sys.executable, "-c", CREATE, url], env=environment, check=True, timeout=30)
        assert proxy.lost.is_set()
    assert Store(url).read("object") == b"mine"
