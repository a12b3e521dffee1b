"""A benchmark that runs in small."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

from tests import commands

ROOT = Path(__file__).parents[2]


def quick(name: str, *options: str) -> tuple[dict[str, Any], str]:
    """The figures of a benchmark, which leaves neither files nor processes, and what it showed."""
    # Short: the paths of sockets lie below it.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="b") as folder:
        command = [sys.executable, "-m", f"benchmarks.{name}", *options]
        shown = commands.succeed(command, cwd=ROOT, env={**os.environ, "TMPDIR": folder}).stdout
        assert not list(Path(folder).glob("bench-*"))
        running = [str(process.info["cmdline"]) for process in psutil.process_iter(["cmdline"])]
        assert not [one for one in running if folder in one]
    return json.loads(shown.splitlines()[-1]), shown
