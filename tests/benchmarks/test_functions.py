"""The benchmark of training functions runs, in small, and leaves nothing behind."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from benchmarks.functions.__main__ import KEYS, POLL, POLL_S
from train_core.functions.runner import FunctionRunner
from train_core.timing import TIMING

ROOT = Path(__file__).parents[2]


def test_the_fair_contender_polls_as_often_as_evertrain() -> None:
    assert FunctionRunner().ray_settings(TIMING).environment == {POLL: str(POLL_S)}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_quick_run_has_every_figure_and_cleans_up() -> None:
    # Short: the paths of sockets lie below it.
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="b") as folder:
        shown = subprocess.run(
            [sys.executable, "-m", "benchmarks.functions", "--quick"],
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
    assert figures.keys() == set(KEYS)
    assert not [key for key in KEYS if figures[key] is None]
