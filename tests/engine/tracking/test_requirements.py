"""A model in MLflow is loaded where only what it requires is installed."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, packages_distributions, requires

import pytest

from train_core.engine.tracking.models.code import REQUIREMENTS

# What is not there cannot be imported.
LOAD = """
import importlib
import sys
from importlib.abc import MetaPathFinder

class Missing(MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name in sys.argv[2:]:
            raise ModuleNotFoundError(name, name=name)

sys.meta_path.insert(0, Missing())
import train_core.engine.tracking.serving
from train_core.loading import workload_class
workload_class(sys.argv[1])
"""


EXTRAS = ("accelerate", "lightning", "pytorch-lightning", "transformers")


def required_by(distribution: str) -> set[str]:
    """The names of what the distribution requires, extras aside."""
    try:
        lines = requires(distribution) or []
    except PackageNotFoundError:  # for another platform
        return set()
    return {normal(re.split(r"[^\w.-]", line)[0]) for line in lines if "extra ==" not in line}


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@pytest.mark.parametrize("name", ["digits:Digits", "mnist:MnistResNet18"])
@pytest.mark.slow
def test_a_shipped_workload_is_loaded_with_what_its_model_requires(name: str) -> None:
    there: set[str] = set()
    waiting = set(REQUIREMENTS)
    while waiting:
        there |= waiting
        waiting = {other for one in waiting for other in required_by(one)} - there
    only_ours = required_by("evertrain") - there
    assert {"prefect", "ray"} <= only_ours
    # The optional extras need not be there, either: torchmetrics imports Transformers if it can.
    only_ours |= {normal(name) for name in EXTRAS}
    missing = [
        module
        for module, owners in packages_distributions().items()
        if {normal(owner) for owner in owners} <= only_ours
    ]
    subprocess.run(
        [sys.executable, "-c", LOAD, f"train_core.workloads.{name}", *missing], check=True
    )
