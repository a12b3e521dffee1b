"""A model in MLflow is loaded where only what it requires is installed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, distribution, requires
from pathlib import Path

import pytest

from train_core.tracking.mlflow.models.code import REQUIREMENTS

LOAD = """
import sys
import train_core.tracking.mlflow.serving
from train_core.loading import workload_class
workload_class(sys.argv[1])
"""


def required_by(distribution: str) -> set[str]:
    """The names of what the distribution requires, extras aside."""
    try:
        lines = requires(distribution) or []
    except PackageNotFoundError:  # for another platform
        return set()
    return {normal(re.split(r"[^\w.-]", line)[0]) for line in lines if "extra ==" not in line}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def link_installed(names: set[str], folder: Path) -> None:
    """Make a folder of packages that holds links to these distributions and to no other."""
    for name in names:
        try:
            installed = distribution(name)
        except PackageNotFoundError:  # for another platform
            continue
        for entry in {file.parts[0] for file in installed.files or ()} - {"..", "__pycache__"}:
            link = folder / entry
            if not link.exists():
                link.symlink_to(str(installed.locate_file(entry)))


@pytest.mark.parametrize("name", ["digits:Digits", "mnist:MnistResNet18"])
@pytest.mark.slow
def test_a_shipped_workload_is_loaded_with_what_its_model_requires(
    name: str, tmp_path: Path
) -> None:
    there: set[str] = set()
    waiting = set(REQUIREMENTS)
    while waiting:
        there |= waiting
        waiting = {other for one in waiting for other in required_by(one)} - there
    assert {"prefect", "ray"} <= required_by("evertrain") - there
    link_installed(there, tmp_path)
    repository = Path(__file__).parents[2]
    # Without `site`, Python sees no package but those of PYTHONPATH.
    subprocess.run(
        [sys.executable, "-S", "-c", LOAD, f"train_core.workloads.{name}"],
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(repository), str(tmp_path)])},
    )
