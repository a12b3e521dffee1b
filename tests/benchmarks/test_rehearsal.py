"""The benchmark of the rehearsal runs, in small."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_one_round_has_every_figure_but_that_of_mnist() -> None:
    asked = [sys.executable, "-m", "benchmarks.rehearsal", "--rounds", "1"]
    shown = subprocess.run(asked, check=True, capture_output=True, text=True, cwd=ROOT).stdout
    figures = json.loads(shown.splitlines()[-1])
    assert figures["rehearsal_cpu_s_digits"] > 0
    assert figures["cold_with_vs_without"] > 0
    assert figures["rehearsal_cpu_s_resnet"] is None
