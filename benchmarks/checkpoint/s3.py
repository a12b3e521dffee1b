"""Saving to S3 and restoring from it, against clients that only move the bytes.

On a real server and on the same one 25 ms away. evertrain hashes all that it moves, and a restore
ends with tensors; its peers do neither, and each is called in every way that its documentation has
for bytes in memory.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.checkpoint.bench import BUCKET, Bench
from benchmarks.checkpoint.ranks import Ranks
from benchmarks.checkpoint.training import Rank
from train_core.rank.checkpoint.reader import load_state
from train_core.storage.objects.store import Store
from train_core.storage.records.verified_files import write_file

LATENCY_MS = 25
FAR = f"{LATENCY_MS}ms"
STATE_MB = 128
_PART_BYTES = 8 * 2**20
_NUM_THREADS = 16


def measure(bench: Bench) -> None:
    """Each contender once a round, on both servers."""
    if bench.s3 is None:
        return
    with bench.far_s3(LATENCY_MS) as far:
        assert far is not None
        for place, environment in (("near", bench.s3), (FAR, far)):
            one_place(bench, place, environment)
    report = bench.report
    for figure in ("s3_save_vs_best", "s3_restore_vs_best"):
        near, away = (report.figures[f"{figure}_{place}"] for place in ("near", FAR))
        report.figure(figure, min(near, away))


def one_place(bench: Bench, place: str, environment: dict[str, str]) -> None:
    """Saves and restores in turns; evertrain's rate over the best peer's."""
    report, folder = bench.report, bench.fresh()
    rounds = 2 if bench.is_quick else 8
    task = {"state_mb": 2 if bench.is_quick else STATE_MB, "prefix": folder.name}
    with Ranks(folder, "s3", 1).start(start, task, **environment) as client:
        for what in ("save", "restore"):
            contenders: list[str] = client.ask("contenders", what=what)[0]
            name = f"S3 {place}, {what}"
            for number in range(rounds + 1):
                # In another order each time: what the one before leaves behind meets them all.
                first = number % len(contenders)
                for contender in contenders[first:] + contenders[:first]:
                    (megabytes_per_s,) = client.ask("run", what=what, contender=contender)
                    # The first connections are made in a round that does not count.
                    if number:
                        report.add(f"{name}: {contender}, MB/s", megabytes_per_s)
            medians = {c: report.median(f"{name}: {c}, MB/s") for c in contenders}
            ours = medians.pop("evertrain")
            report.figure(f"s3_{what}_vs_best_{place}", ours / max(medians.values()))
        client.ask("close")


def start(task: dict[str, Any]) -> Callable[..., Any]:
    """A process with all clients; what carries out its commands."""
    client = Client(**task)
    return lambda command, **arguments: getattr(client, command)(**arguments)


class Client:
    """evertrain and its peers, with the same bytes to move."""

    def __init__(self, state_mb: float, prefix: str) -> None:
        import boto3
        import obstore
        import s3fs
        from obstore.store import S3Store

        os.environ["WORLD_SIZE"] = "1"
        self.obstore = obstore
        self.boto3 = boto3.client("s3")
        self.store = Store(f"s3://{BUCKET}/{prefix}")
        self.root = f"{BUCKET}/{prefix}"
        self.fs = s3fs.S3FileSystem()
        self.prefix = prefix
        self.bucket = S3Store(
            BUCKET,
            endpoint=os.environ["AWS_ENDPOINT_URL"],
            client_options={"allow_http": True},
        )
        self.rank = Rank(f"s3://{BUCKET}/{prefix}/training", {"state_mb": state_mb})
        self.rank.turn(steps=1)
        self.rank.turn(steps=1, mode="save once")
        (self.checkpoint,) = self.rank.folder.checkpoints()
        self.size = sum(file.size_bytes for file in self.checkpoint.manifest.files)
        self.data = os.urandom(self.size)
        self.file = Path(tempfile.mkdtemp(), "data")
        self.file.write_bytes(self.data)

    def contenders(self, what: str) -> list[str]:
        """The names of those who save or restore."""
        return list(self._saves() if what == "save" else self._restores())

    def run(self, what: str, contender: str) -> float:
        """Its rate, in MB/s."""
        work = (self._saves() if what == "save" else self._restores())[contender]
        # What the one before has written, here or in the server, is not this one's to wait for.
        os.sync()
        begin = time.perf_counter()
        found = work()
        seconds = time.perf_counter() - begin
        assert what == "save" or found == self.size
        if what == "save":
            assert self.fs.info(f"{self.root}/new")["size"] == self.size
            self.fs.rm_file(f"{self.root}/new")
        return self.size / 1e6 / seconds

    def close(self) -> None:
        """End what was started."""
        self.rank.close()
        shutil.rmtree(self.file.parent)

    def _saves(self) -> dict[str, Callable[[], Any]]:
        key, path = f"{self.prefix}/new", f"{self.root}/new"
        return {
            "evertrain": lambda: write_file(self.store, "new", memoryview(self.data)),
            "obstore put": lambda: self.obstore.put(self.bucket, key, self.data),
            "s3fs pipe_file": lambda: self.fs.pipe_file(path, self.data),
            "s3fs put_file": lambda: self.fs.put_file(str(self.file), path),
            "boto3": lambda: self.boto3.upload_fileobj(io.BytesIO(self.data), BUCKET, key),
        }

    def _restores(self) -> dict[str, Callable[[], int]]:
        sizes = {
            f"{self.rank.folder.store.path(self.checkpoint.key)}/{file.name}": file.size_bytes
            for file in self.checkpoint.manifest.files
        }
        parts = [
            (path, start, min(start + _PART_BYTES, size))
            for path, size in sizes.items()
            for start in range(0, size, _PART_BYTES)
        ]

        def ours() -> int:
            load_state(self.rank.folder.store, self.checkpoint)
            return self.size

        def ranges() -> int:
            def get(path: str, start: int, stop: int) -> Any:
                key = path.removeprefix(f"{BUCKET}/")
                return self.obstore.get_range(self.bucket, key, start=start, end=stop)

            with ThreadPoolExecutor(_NUM_THREADS) as threads:
                # Kept until all is there, or it would all be read into the same few megabytes.
                return sum(map(len, list(threads.map(get, *zip(*parts, strict=True)))))

        def s3fs_ranges() -> int:
            return sum(map(len, self.fs.cat_ranges(*map(list, zip(*parts, strict=True)))))

        def get_files() -> int:
            targets = [str(self.file.with_name(os.path.basename(path))) for path in sizes]
            self.fs.get(list(sizes), targets)
            return sum(map(os.path.getsize, targets))

        def download() -> int:
            into = {path.removeprefix(f"{BUCKET}/"): io.BytesIO() for path in sizes}
            for key, file in into.items():
                self.boto3.download_fileobj(BUCKET, key, file)
            return sum(file.getbuffer().nbytes for file in into.values())

        return {
            "evertrain": ours,
            "obstore get_range x 16": ranges,
            "s3fs cat_ranges": s3fs_ranges,
            "s3fs get": get_files,
            "boto3": download,
        }
