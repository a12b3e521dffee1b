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


def test_all_that_train_core_exports_is_there_and_its_functions_load_no_torch() -> None:
    code = """
import sys
import train_core
for name in ("TrainConfig", "fit", "open_run", "list_runs", "verify_run", "export_weights"):
    assert name in train_core.__all__ and getattr(train_core, name)
assert not {"torch", "ray", "mlflow", "prefect"} & set(sys.modules)
for name in train_core.__all__:
    assert getattr(train_core, name)
"""
    commands.succeed([sys.executable, "-c", code])


def test_a_trial_of_a_search_loads_ray_and_no_torch() -> None:
    code = """
import sys
from train_core import tune
assert tune.TuneCheckpoint
assert not {"torch", "ray", "mlflow"} & set(sys.modules)
assert tune.trainable
assert not {"torch", "mlflow"} & set(sys.modules)
"""
    commands.succeed([sys.executable, "-c", code])


def test_commands_flows_and_tasks_load_torch_late_or_not_at_all() -> None:
    code = """
import sys
from importlib import import_module
from pkgutil import walk_packages
import evertrain_flows, evertrain_tasks
for package in (evertrain_flows, evertrain_tasks):
    for module in walk_packages(package.__path__, f"{package.__name__}."):
        if not module.name.endswith("__main__"):
            import_module(module.name)
assert not {"torch", "ray", "mlflow"} & set(sys.modules)
"""
    commands.succeed([sys.executable, "-c", code])
