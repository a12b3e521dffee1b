"""docs/search.md: its search is that of a file, which is run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from evertrain_flows.databases import create_tracking_database
from tests.flows.conftest import ROOT
from train_core import list_runs, open_run

pytest.importorskip("ray.tune")

PAGE = (ROOT / "docs/search.md").read_text()
EXAMPLE = ROOT / "docs/examples/search_digits.py"


@pytest.mark.promise("search-page")
def test_the_code_on_the_page_is_that_of_the_example() -> None:
    (shown,) = re.findall(r"(?ms)^```python\n(.*?)^```$", PAGE)
    assert EXAMPLE.read_text().endswith(shown)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.promise("search-page")
def test_the_example_searches_and_its_best_trial_is_published(tmp_path: Path) -> None:
    tracking_uri = f"sqlite:///{tmp_path}/mlflow.db"
    create_tracking_database(tracking_uri)
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        cwd=tmp_path,
        env={
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "HOME": str(tmp_path),
            "MLFLOW_TRACKING_URI": tracking_uri,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5000:]
    storage = str(tmp_path / "runs")
    runs = list_runs(storage)
    assert len(runs) == 4
    assert {one.search[:6] for one in runs} == {"rates-"}
    (best,) = [one for one in runs if one.gate]
    report = open_run(storage, best.run).report
    assert report is not None
    assert report["gate"]["decision"]["challenger"]["model"] == "digits"
