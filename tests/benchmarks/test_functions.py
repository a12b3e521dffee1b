"""The benchmark of training functions runs, in small, and leaves nothing behind."""

import pytest

from benchmarks.functions.__main__ import KEYS, POLL, POLL_S
from tests.benchmarks.quick import quick
from train_core.functions.runner import FunctionRunner
from train_core.timing import TIMING


def test_the_fair_contender_polls_as_often_as_evertrain() -> None:
    assert FunctionRunner().ray_settings(TIMING).environment == {POLL: str(POLL_S)}


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_quick_run_has_every_figure_and_cleans_up() -> None:
    figures, _ = quick("functions", "--quick")
    assert figures.keys() == set(KEYS)
    assert not [key for key in KEYS if figures[key] is None]
