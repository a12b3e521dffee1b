"""The benchmark of checkpoints runs, in small, and leaves nothing behind."""

from pathlib import Path

import pytest

from benchmarks.checkpoint.__main__ import KEYS
from tests.benchmarks.quick import quick

# Those that stay open without an S3 server.
NEEDS_S3 = {"s3_save_vs_best", "s3_restore_vs_best", "frozen_bytes_ratio"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_quick_run_has_every_figure_and_cleans_up() -> None:
    before = set(Path("/dev/shm").iterdir())
    figures, shown = quick("checkpoint", "--quick")
    assert set(KEYS) <= figures.keys()
    unmeasured = {key for key in KEYS if figures[key] is None}
    assert unmeasured <= (NEEDS_S3 if "no S3 server" in shown else set())
    left = set(Path("/dev/shm").iterdir()) - before
    assert not [path for path in left if path.name.startswith("evertrain-bench-")]
