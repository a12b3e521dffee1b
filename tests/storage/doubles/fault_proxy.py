"""A proxy before a real HTTP server that fails on schedule and is as far away as it is told.

    python -m tests.storage.doubles.fault_proxy --upstream http://127.0.0.1:7480 --port 7481 \\
        --latency-ms 25 --mib-per-s 90

Clients use the proxy's address as their endpoint. It hands every byte on as it is, the Host header
included, which the client has signed. One thread serves one connection, half-duplex; two do after a
request for a websocket.
"""

from __future__ import annotations

import argparse
import io
import math
import re
import select
import signal
import socket
import socketserver
import struct
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from enum import Enum
from http.client import HTTPMessage, parse_headers
from typing import BinaryIO, Self
from urllib.parse import urlsplit

PIECE_BYTES = 2**20
SLOW_DOWN = (
    b'<?xml version="1.0" encoding="UTF-8"?>'
    b"<Error><Code>SlowDown</Code><Message>Reduce your request rate.</Message></Error>"
)


class Kind(Enum):
    """What happens to a request."""

    REFUSE = "refuse"  # the server is not asked: the fault's own status and body are the answer
    RESET_REQUEST = "reset request"  # the server gets half of it, then both connections are reset
    STALL_REQUEST = "stall request"  # half of it is read, then nothing: no more reading, no answer
    LOSE_ANSWER = "lose answer"  # the server does it; the connection is reset before the answer
    HOLD_ANSWER = "hold answer"  # the server does it; nothing is heard of it
    RESET_ANSWER = "reset answer"  # the connection is reset in the middle of the answer
    TRUNCATE_ANSWER = "truncate answer"  # it is closed properly there, as if that was all


@dataclass(frozen=True)
class Fault:
    """A fault and the requests that it meets: those that match, after `skip`, `times` of them."""

    kind: Kind
    method: str = ""
    target: str = ""
    """A regular expression that is found in the request's path and query."""
    asks: bytes = b""
    """One that is found in its body."""
    min_bytes: int = 0
    """The size of its body, at least."""
    skip: int = 0
    times: float = 1
    status: str = "503 Slow Down"
    body: bytes = SLOW_DOWN

    def matches(self, method: str, target: str, asked: bytes) -> bool:
        """Whether a request is of the kind that the fault is for."""
        if self.method not in ("", method) or len(asked) < self.min_bytes:
            return False
        return bool(re.search(self.target, target) and re.search(self.asks, asked))


@dataclass
class Schedule:
    """The faults to come, and the requests that were met by one."""

    faults: list[Fault] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)
    """How many requests each fault was for."""
    hits: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, fault: Fault) -> None:
        with self._lock:
            self.faults.append(fault)
            self.seen.append(0)

    def clear(self) -> None:
        """Forget the faults; the hits stay."""
        with self._lock:
            self.faults.clear()
            self.seen.clear()

    @property
    def looks_at_bodies(self) -> bool:
        return any(fault.asks or fault.min_bytes for fault in self.faults)

    def take(self, method: str, target: str, asked: bytes = b"") -> Fault | None:
        """The fault that meets this request, whose body is `asked`."""
        with self._lock:
            for number, fault in enumerate(self.faults):
                if not fault.matches(method, target, asked):
                    continue
                self.seen[number] += 1
                if fault.skip < self.seen[number] <= fault.skip + fault.times:
                    self.hits.append(f"{method} {target}")
                    return fault
        return None


@dataclass
class Head:
    """The first lines of a request or an answer, as they came."""

    raw: bytes
    first: list[str]
    headers: HTTPMessage

    @classmethod
    def read(cls, source: BinaryIO) -> Self | None:
        """The next one; None when the other side has hung up."""
        lines = []
        while (line := source.readline(2**16)) not in (b"\r\n", b""):
            lines.append(line)
        if not lines:
            return None
        raw = b"".join([*lines, b"\r\n"])
        first, _, rest = raw.partition(b"\r\n")
        return cls(raw, first.decode("latin-1").split(" ", 2), parse_headers(io.BytesIO(rest)))

    @property
    def is_chunked(self) -> bool:
        return "chunked" in self.headers.get("Transfer-Encoding", "").lower()

    @property
    def size_bytes(self) -> int | None:
        """The size of what follows; None if the head does not say."""
        found = self.headers.get("Content-Length")
        return None if found is None else int(found)


class BrokenOffError(Exception):
    """The connection is at its end, by the schedule."""


class _Connection(socketserver.BaseRequestHandler):
    server: FaultProxy

    def handle(self) -> None:
        with (
            suppress(OSError, BrokenOffError),  # one side or the schedule has ended it
            socket.create_connection(self.server.upstream) as self.upstream,
            self.request.makefile("rb") as self.questions,
            self.upstream.makefile("rb") as self.answers,
        ):
            self.piece = memoryview(bytearray(PIECE_BYTES))
            for end in (self.request, self.upstream):
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self.server.watching(self.request, self.upstream):
                while self.exchange() and not self.has_hung_up():
                    pass

    def has_hung_up(self) -> bool:
        """Whether the server does before the next request comes, which it would not get."""
        polled = select.poll()
        for end in (self.request, self.upstream):
            polled.register(end, select.POLLIN)
        return self.upstream.fileno() in dict(polled.poll())

    def exchange(self) -> bool:
        """Hand on one request and its answer; whether the connection goes on."""
        head = Head.read(self.questions)
        if head is None:
            return False
        method, target = head.first[:2]
        if self.server.silences:
            self.server.schedule.hits.append(f"{method} {target}")
            self.end(Kind.HOLD_ANSWER)
        self.asked: bytes | None = None
        if self.server.schedule.looks_at_bodies:
            self.asked = b"".join(map(bytes, self.body(head, self.questions)))
        fault = self.server.schedule.take(method, target, self.asked or b"")
        if self.server.latency_s:
            time.sleep(self.server.latency_s)
        if fault and fault.kind is Kind.REFUSE:
            self.refuse(head, fault)
            return True
        self.ask(head, fault)
        return self.answer(method, fault)

    def refuse(self, head: Head, fault: Fault) -> None:
        if "Expect" in head.headers:
            self.request.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        for _ in self.question(head):
            pass
        body = b"" if head.first[0] == "HEAD" else fault.body
        lines = (
            f"HTTP/1.1 {fault.status}\r\nContent-Type: application/xml\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        )
        self.request.sendall(lines.encode() + body)

    def ask(self, head: Head, fault: Fault | None) -> None:
        cut = fault is not None and fault.kind in (Kind.RESET_REQUEST, Kind.STALL_REQUEST)
        self.upstream.sendall(head.raw)
        if "Expect" in head.headers:
            # The server may also answer at once; then the client does not send the body.
            self.interim = Head.read(self.answers)
            if self.interim is None:
                raise BrokenOffError
            if self.interim.first[1] != "100":
                return
            self.request.sendall(self.interim.raw)
        self.interim = None
        limit = (head.size_bytes or 0) // 2 if cut else math.inf
        self.hand_on(self.question(head, limit), self.upstream)
        if cut:
            assert fault is not None
            self.end(fault.kind)

    def answer(self, method: str, fault: Fault | None) -> bool:
        head = self.interim or Head.read(self.answers)
        while head and head.first[1].startswith("1"):
            self.request.sendall(head.raw)
            if head.first[1] == "101":
                self.hand_on_both_ways()
                return False
            head = Head.read(self.answers)
        if head is None:
            return False
        if fault and fault.kind in (Kind.LOSE_ANSWER, Kind.HOLD_ANSWER):
            self.end(fault.kind)
        no_body = method == "HEAD" or head.first[1] in ("204", "304")
        size_bytes = 0 if no_body else head.size_bytes
        if fault:
            has_body = size_bytes or head.is_chunked
            self.request.sendall(head.raw if has_body else head.raw[: len(head.raw) // 2])
            if size_bytes:
                self.hand_on(self.body(head, self.answers, size_bytes // 2), self.request)
            self.end(fault.kind)
        self.request.sendall(head.raw)
        if no_body:
            return True
        self.hand_on(self.body(head, self.answers, to_end=size_bytes is None), self.request)
        return (size_bytes is not None or head.is_chunked) and self.interim is None

    def hand_on_both_ways(self) -> None:
        """What follows a request for a websocket, until one of the sides hangs up."""

        def pump(source: io.BufferedReader, to: socket.socket) -> None:
            with suppress(OSError):
                while piece := source.read1(PIECE_BYTES):
                    if not self.server.silences:
                        to.sendall(piece)
            with suppress(OSError):
                to.shutdown(socket.SHUT_RDWR)

        back = threading.Thread(target=pump, args=(self.answers, self.request))
        back.start()
        pump(self.questions, self.upstream)
        back.join()

    def question(self, head: Head, limit: float = math.inf) -> Iterator[memoryview | bytes]:
        """The request's body, which may have been read."""
        if self.asked is None:
            return self.body(head, self.questions, limit)
        return iter([self.asked])

    def body(
        self, head: Head, source: BinaryIO, limit: float = math.inf, *, to_end: bool = False
    ) -> Iterator[memoryview | bytes]:
        """What follows a head, in pieces, as it comes."""
        if head.is_chunked:
            yield from self.chunks(source)
            return
        left = math.inf if to_end else min(head.size_bytes or 0, limit)
        while left > 0:
            got = source.readinto1(self.piece[: int(min(left, PIECE_BYTES))])  # type: ignore[attr-defined]  # a BufferedReader has it
            if not got:
                if to_end:
                    return
                raise BrokenOffError
            yield self.piece[:got]
            left -= got

    @staticmethod
    def chunks(source: BinaryIO) -> Iterator[bytes]:
        while line := source.readline(2**16):
            size_bytes = int(line.split(b";")[0], 16)
            if size_bytes:
                yield line + source.read(size_bytes + 2)
                continue
            while line not in (b"\r\n", b""):  # trailers
                yield line
                line = source.readline(2**16)
            yield line
            return

    def hand_on(self, pieces: Iterator[memoryview | bytes], to: socket.socket) -> None:
        begin, moved, bytes_per_s = time.monotonic(), 0, self.server.bytes_per_s
        for piece in pieces:
            moved += len(piece)
            ahead_s = moved / bytes_per_s - (time.monotonic() - begin)
            if ahead_s > 0:
                time.sleep(ahead_s)
            to.sendall(piece)

    def end(self, kind: Kind) -> None:
        """End the connection as the fault says."""
        if kind in (Kind.STALL_REQUEST, Kind.HOLD_ANSWER):
            self.server.stopped.wait()
        elif kind is not Kind.TRUNCATE_ANSWER:
            for end in (self.request, self.upstream):
                # Closing sends a reset.
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        raise BrokenOffError


class FaultProxy(socketserver.ThreadingTCPServer):
    """The proxy, serving in threads of its own while it is entered."""

    allow_reuse_address = True
    request_queue_size = 128

    def __init__(
        self,
        upstream: str,
        port: int = 0,
        *,
        host: str = "127.0.0.1",
        latency_s: float = 0.0,
        bytes_per_s: float = math.inf,
    ) -> None:
        address = urlsplit(upstream)
        assert address.scheme == "http", "the proxy reads heads: TLS hides them"
        self.upstream = (address.hostname or "127.0.0.1", address.port or 80)
        self.latency_s = latency_s
        self.bytes_per_s = bytes_per_s
        self.schedule = Schedule()
        self.silences = False
        """Whether it hands on no request any more, and nothing of websockets, and says nothing."""
        self.stopped = threading.Event()
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__((host, port), _Connection)

    @property
    def url(self) -> str:
        return f"http://{self.server_address[0]!s}:{self.server_address[1]}"

    def __enter__(self) -> Self:
        self._serving = threading.Thread(target=self.serve_forever, args=(0.05,), name="proxy")
        self._serving.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self._serving.join()
        with self._lock:
            self.stopped.set()
        self.cut_off()
        self.server_close()  # waits for the threads of the connections

    def cut_off(self) -> None:
        with self._lock:
            for end in self._open:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    @contextmanager
    def watching(self, *ends: socket.socket) -> Iterator[None]:
        """Have the sockets shut down if the proxy stops."""
        with self._lock:
            if self.stopped.is_set():
                raise BrokenOffError
            self._open.update(ends)
        try:
            yield
        finally:
            with self._lock:
                self._open.difference_update(ends)

    def shutdown_request(self, request: socket.socket) -> None:  # type: ignore[override]
        # Without the orderly shutdown of the base class, which would come before a reset.
        self.close_request(request)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--upstream", required=True, help="the server's URL")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--latency-ms", type=float, default=0.0, help="for each request")
    parser.add_argument("--mib-per-s", type=float, default=math.inf, help="for each connection")
    asked = parser.parse_args()
    signals = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    with FaultProxy(
        asked.upstream,
        asked.port,
        latency_s=asked.latency_ms / 1000,
        bytes_per_s=asked.mib_per_s * 2**20,
    ) as proxy:
        sys.stdout.write(f"{proxy.url}\n")
        sys.stdout.flush()
        signal.sigwait(signals)


if __name__ == "__main__":
    main()
