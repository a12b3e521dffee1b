"""What all sections share: the scratch folder, the report, the size of the run, an S3 server."""

from __future__ import annotations

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from benchmarks.report import Report

ROOT = Path(__file__).parents[2]
_SCRIPT = ROOT / "tests/object-store.sh"
BUCKET = "evertrain-bench"


@dataclass
class Bench:
    """One run of the benchmark."""

    scratch: Path
    report: Report
    cores: list[int]
    """The two that it uses."""
    is_quick: bool
    number: int = 0
    _store: Path | None = None

    def fresh(self) -> Path:
        """An empty folder."""
        self.number += 1
        folder = self.scratch / f"{self.number:02d}"
        folder.mkdir()
        return folder

    @cached_property
    def s3(self) -> dict[str, str] | None:
        """What clients of a real S3 server need in their environment; None if there is none."""
        if not shutil.which("radosgw", path="/usr/bin:/usr/sbin:/usr/local/bin"):
            self.report.note("no S3 server here (see tests/object-store.sh): its figures are left")
            return None
        self._store = self.fresh()
        subprocess.run([_SCRIPT, "start", self._store], check=True)
        shown = subprocess.check_output([_SCRIPT, "env", self._store], text=True)
        found = dict(re.findall(r"^export (\w+)=(.*)$", shown, re.MULTILINE))
        subprocess.run(
            [sys.executable, "-c", f"import s3fs; s3fs.S3FileSystem().mkdir({BUCKET!r})"],
            check=True,
            env=found,
        )
        return found

    def close(self) -> None:
        """Stop the S3 server and delete everything."""
        if self._store:
            subprocess.run([_SCRIPT, "destroy", self._store], check=True)
        shutil.rmtree(self.scratch, ignore_errors=True)

    @contextlib.contextmanager
    def far_s3(self, latency_ms: float) -> Iterator[dict[str, str] | None]:
        """The S3 server, so far away."""
        if self.s3 is None:
            yield None
            return
        command = [
            *(sys.executable, "-m", "tests.storage.doubles.fault_proxy"),
            *("--upstream", self.s3["AWS_ENDPOINT_URL"], "--latency-ms", str(latency_ms)),
        ]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        assert process.stdout is not None
        try:
            yield {**self.s3, "AWS_ENDPOINT_URL": process.stdout.readline().strip()}
        finally:
            process.terminate()
            process.communicate(timeout=20)
