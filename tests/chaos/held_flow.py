"""The command line, whose flow stands still if `EVERTRAIN_TEST_HOLD` names one of its stages.

No workload is called there, which could do it: it stands still before a function is called.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

from evertrain_flows.cli import prefect_server
from evertrain_flows.cli.app import command
from tests.chaos.standing import HELD_IN_FLOW, HOLD, SELECTION, stand_still

BEFORE = {
    "before the flow run": ("evertrain_flows.cli.run_pipeline", "_run_flow"),
    "before the first task": ("evertrain_flows.retrain", "refuse_crash_loop"),
    SELECTION: ("evertrain_tasks.select", "ranked"),
    "artifacts": ("evertrain_tasks.stages", "show_report"),
}
assert set(BEFORE) == set(HELD_IN_FLOW)


def hold_before(module: str, name: str) -> None:
    """Have whoever calls the function stand still first."""
    # Prefect is imported with it, which reads its settings then.
    prefect_server.configure(verbose=False)
    found = importlib.import_module(module)
    own = getattr(found, name)

    def held(*arguments: Any, **named: Any) -> Any:
        stand_still()
        return own(*arguments, **named)

    setattr(found, name, held)


if __name__ == "__main__":
    stage, _, rank = os.environ.get(HOLD, "").partition("@")
    if stage in BEFORE and rank == "0":
        hold_before(*BEFORE[stage])
    command()
