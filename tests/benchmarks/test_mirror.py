"""The benchmark of the mirror runs, in small, and leaves nothing behind."""

import math

import pytest

from tests.benchmarks.quick import quick


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_quick_run_has_every_figure_and_cleans_up() -> None:
    figures, _ = quick("mirror", "--quick")
    assert figures.keys() == {"loop_overhead_pct", "points_per_s_vs_log_batch"}
    # How fast it is depends on what the machine does meanwhile.
    assert math.isfinite(figures["loop_overhead_pct"])
    assert figures["points_per_s_vs_log_batch"] > 0
