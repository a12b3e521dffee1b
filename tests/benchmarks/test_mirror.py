"""The benchmark of the mirror runs, in small, and leaves nothing behind."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_quick_run_has_every_figure_and_cleans_up(tmp_path: Path) -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "benchmarks.mirror", "--quick"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ).stdout
    assert not list(tmp_path.glob("bench-*"))
    figures = json.loads(shown.splitlines()[-1])
    assert figures.keys() == {"loop_overhead_pct", "points_per_s_vs_log_batch"}
    # How fast it is depends on what the machine does meanwhile.
    assert math.isfinite(figures["loop_overhead_pct"])
    assert figures["points_per_s_vs_log_batch"] > 0
