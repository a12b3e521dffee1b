"""The page on results is true: its lines run, from the first to the last."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from textwrap import dedent
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib import pyplot as plt

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "results-from-python.md").read_text()
WRITTEN = ROOT / "tests" / "earlier_versions" / "before_rooms" / "run"
"""A run of two epochs, that an earlier version has trained."""


def lines_of_the_page() -> str:
    """All that is indented, as one program."""
    lines = PAGE.splitlines(keepends=True)
    return dedent("".join(line for line in lines if line.startswith("    ") or line == "\n"))


@pytest.mark.promise("results-page")
def test_the_lines_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "runs" / "digits"
    shutil.copytree(WRITTEN, run)
    # The name of a run is in its documents, too.
    for document in (run / "run.json", run / "report.json"):
        document.write_text(document.read_text().replace('"before"', '"digits"'))
    monkeypatch.chdir(tmp_path)
    mpl.use("agg")
    found: dict[str, Any] = {}
    exec(lines_of_the_page(), found)
    plt.close("all")

    assert list(found["metrics"].index) == list(range(1, 41))
    assert list(found["validated"].index) == [20, 40]
    assert found["last"] == found["newest"].metrics["train/loss"]
    assert found["speed"] > 0
    for name in ("best", "lowest", "same", "champion", "again"):
        assert found[name].step == 40, name
    assert capsys.readouterr().out.startswith("40 2 {'train/loss': 2.0733")
    assert all(np.isfinite(tensor).all() for tensor in found["weights"].values())
    assert (tmp_path / "weights.safetensors").exists()


def test_all_functions_that_the_page_names_are_exported() -> None:
    import train_core

    (chapter,) = re.findall(r"## What else takes a run\n(.*?)\n    ", PAGE, re.DOTALL)
    named = set(re.findall(r"`(\w+)`", chapter))
    assert len(named) == 12
    assert named <= set(train_core.__all__)
