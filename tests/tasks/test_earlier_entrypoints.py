"""Earlier names of the flows are found in a flow run's process only, and after a project's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.flows.conftest import isolated

FLOW_RUN = {"PREFECT__FLOW_RUN_ID": "27fe0050-5520-4723-838a-b53a4228f9c3"}
ENABLED = {"PREFECT_PLUGINS_ENABLED": "true", "PREFECT_LOGGING_TO_API_ENABLED": "false"}
NAMES = """
import sys
from importlib import import_module
import prefect

print(sorted({one.partition(".")[0] for one in sys.modules} & {"evertrain_flows", "train_core"}))
for name in ("flows.nightly", "flows.mirror", "flows.rollback", "flows.hourly"):
    try:
        print(name, import_module(name).__name__)
    except ModuleNotFoundError as error:
        print(error)
"""


def found(folder: Path, variables: dict[str, str]) -> list[str]:
    """What a process in a project with the modules `flows.nightly` and `flows.mirror` finds."""
    (folder / "flows").mkdir()
    for name in ("__init__", "nightly", "mirror"):
        (folder / f"flows/{name}.py").touch()
    environment = isolated(folder) | {"PYTHONPATH": str(folder)} | variables
    command = [sys.executable, "-P", "-c", NAMES]
    return subprocess.check_output(command, env=environment, text=True).splitlines()


def test_a_flow_run_finds_an_earlier_flow_unless_the_project_has_one(tmp_path: Path) -> None:
    assert found(tmp_path, ENABLED | FLOW_RUN) == [
        "[]",
        "flows.nightly flows.nightly",
        "flows.mirror flows.mirror",
        "flows.rollback evertrain_flows.rollback",
        "No module named 'flows.hourly'",
    ]


def test_another_process_finds_none(tmp_path: Path) -> None:
    assert "No module named 'flows.rollback'" in found(tmp_path, ENABLED)
