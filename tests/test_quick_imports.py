"""What is not imported for nothing is there for what needs it."""

from __future__ import annotations

import sys

import pytest

from tests import commands


@pytest.mark.slow
def test_torchmetrics_leaves_the_real_scipy_signal_to_those_who_need_it() -> None:
    code = """
import sys
import train_core.workload
assert "torchmetrics" in sys.modules and "scipy.signal" not in sys.modules
from scipy.signal import butter
assert butter(1, 0.5)
"""
    commands.succeed([sys.executable, "-c", code])


def test_what_takes_long_to_import_is_imported_where_it_is_needed() -> None:
    """Torch by who trains, Ray by a trial of a search; neither by commands, flows and tasks."""
    code = """
import sys
from importlib import import_module
from pkgutil import walk_packages

def loaded(*names):
    return set(names) & set(sys.modules)

import train_core
for name in ("TrainConfig", "fit", "open_run", "list_runs", "verify_run", "export_weights"):
    assert name in train_core.__all__ and getattr(train_core, name)
assert not loaded("torch", "ray", "mlflow", "prefect")

from train_core import tune
assert tune.TuneCheckpoint
assert not loaded("torch", "ray", "mlflow")

import evertrain_flows, evertrain_tasks
for package in (evertrain_flows, evertrain_tasks):
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
assert not loaded("torch", "ray", "mlflow")

assert tune.trainable
assert not loaded("torch", "mlflow")

for name in train_core.__all__:
    assert getattr(train_core, name)
"""
    commands.succeed([sys.executable, "-c", code])
