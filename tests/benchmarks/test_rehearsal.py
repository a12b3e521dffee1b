"""The benchmark of the rehearsal runs, in small."""

import pytest

from tests.benchmarks.quick import quick


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_round_has_every_figure_but_that_of_mnist() -> None:
    figures, _ = quick("rehearsal", "--rounds", "1")
    assert figures["rehearsal_cpu_s_digits"] > 0
    assert figures["cold_with_vs_without"] > 0
    assert figures["rehearsal_cpu_s_resnet"] is None
