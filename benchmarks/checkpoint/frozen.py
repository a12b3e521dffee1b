"""How many bytes a checkpoint sends to S3 when nine tenths of the model are frozen.

Counted on the wire, after the first checkpoint; over those of the same model with nothing frozen.
"""

from __future__ import annotations

import socket
import socketserver
import threading
from contextlib import suppress
from urllib.parse import urlsplit

from benchmarks.checkpoint import training
from benchmarks.checkpoint.bench import BUCKET, Bench
from benchmarks.checkpoint.ranks import Ranks
from benchmarks.checkpoint.workload import NUM_BLOCKS

STATE_MB = 60


class CountingProxy(socketserver.ThreadingTCPServer):
    """Hands bytes on, and counts those to the server."""

    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        address = urlsplit(upstream)
        self.upstream = address.hostname or "", address.port or 80
        self.sent_bytes = 0
        super().__init__(("127.0.0.1", 0), _Connection)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Connection(socketserver.BaseRequestHandler):
    server: CountingProxy

    def handle(self) -> None:
        with socket.create_connection(self.server.upstream) as upstream:
            back = threading.Thread(target=self.hand_on, args=(upstream, self.request))
            back.start()
            self.hand_on(self.request, upstream, counts=True)
            back.join()

    def hand_on(
        self, source: socket.socket, target: socket.socket, *, counts: bool = False
    ) -> None:
        with suppress(OSError):
            while data := source.recv(2**18):
                if counts:
                    self.server.sent_bytes += len(data)
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)


def measure(bench: Bench) -> None:
    """Two checkpoints of each model; the second one counts."""
    if bench.s3 is None:
        return
    report = bench.report
    for name, frozen_blocks in (("nothing frozen", 0), ("90% frozen", NUM_BLOCKS * 9 // 10)):
        folder = bench.fresh()
        settings = {"state_mb": 5 if bench.is_quick else STATE_MB, "frozen_blocks": frozen_blocks}
        task = {"storage": f"s3://{BUCKET}/{folder.name}", "settings": settings}
        with CountingProxy(bench.s3["AWS_ENDPOINT_URL"]) as proxy:
            environment = {**bench.s3, "AWS_ENDPOINT_URL": proxy.url}
            with Ranks(folder, "frozen", 2).start(training.start, task, **environment) as ranks:
                ranks.ask("turn", steps=1)
                ranks.ask("turn", steps=1, mode="save once")
                for _ in range(2):
                    before = proxy.sent_bytes
                    ranks.ask("turn", steps=1, mode="save once")
                    report.add(f"sent to S3, {name}, MB", (proxy.sent_bytes - before) / 1e6)
                ranks.ask("close")
            proxy.shutdown()
    whole = report.median("sent to S3, nothing frozen, MB")
    report.figure("frozen_bytes_ratio", report.median("sent to S3, 90% frozen, MB") / whole)
