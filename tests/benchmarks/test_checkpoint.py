"""The benchmark of checkpoints runs, in small, and leaves nothing behind."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from benchmarks.checkpoint.__main__ import KEYS

ROOT = Path(__file__).parents[2]
# Those that stay open without an S3 server.
NEEDS_S3 = {"s3_save_vs_best", "s3_restore_vs_best", "frozen_bytes_ratio"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_quick_run_has_every_figure_and_cleans_up() -> None:
    before = set(Path("/dev/shm").iterdir())
    # Short: the paths of sockets lie below it.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="b") as folder:
        shown = subprocess.run(
            [sys.executable, "-m", "benchmarks.checkpoint", "--quick"],
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "TMPDIR": folder},
        ).stdout
        assert not list(Path(folder).glob("bench-*"))
        commands = [str(process.info["cmdline"]) for process in psutil.process_iter(["cmdline"])]
        assert not [command for command in commands if folder in command]
    figures = json.loads(shown.splitlines()[-1])
    assert set(KEYS) <= figures.keys()
    unmeasured = {key for key in KEYS if figures[key] is None}
    assert unmeasured <= (NEEDS_S3 if "no S3 server" in shown else set())
    left = set(Path("/dev/shm").iterdir()) - before
    assert not [path for path in left if path.name.startswith("evertrain-bench-")]
