"""The benchmark of the rehearsal runs, in small."""

import json
import sys
from pathlib import Path

import pytest

from tests import commands

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_round_has_every_figure_but_that_of_mnist() -> None:
    asked = [sys.executable, "-m", "benchmarks.rehearsal", "--rounds", "1"]
    shown = commands.succeed(asked, cwd=ROOT).stdout
    figures = json.loads(shown.splitlines()[-1])
    assert figures["rehearsal_cpu_s_digits"] > 0
    assert figures["cold_with_vs_without"] > 0
    assert figures["rehearsal_cpu_s_resnet"] is None
