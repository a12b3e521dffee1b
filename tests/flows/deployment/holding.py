"""A flow that stands still where it is told to, and its deployment with one slot."""

from __future__ import annotations

import os
import time
from pathlib import Path

import yaml
from prefect import flow, runtime

NOTES = "EVERTRAIN_TEST_HELD_NOTES"
"""The folder in which a flow run says where it is, and finds how long it has to stay there."""
PENDING, RUNNING = "pending", "running"
_STAND_STILL = (
    f'touch "${NOTES}/{PENDING}"; while [ -e "${NOTES}/hold-{PENDING}" ]; do sleep 0.1; done'
)
"""A pull step, which a flow run's process takes before the flow run is Running."""


@flow(name="retrain")
def hold(parameters: dict[str, str] | None = None) -> None:
    """Stand still while there is a file that says so. Its parameters are those of `retrain`."""
    notes = Path(os.environ[NOTES])
    (notes / f"{RUNNING}-{runtime.flow_run.name}").touch()
    while (notes / f"hold-{RUNNING}").exists():
        time.sleep(0.1)


def deployment_file(folder: Path) -> Path:
    """A prefect.yaml with the deployment `retrain/hold`, which has the delivered one's limit."""
    deployment = {
        "name": "hold",
        "entrypoint": f"{__name__}.{hold.fn.__name__}",
        "work_pool": {"name": "evertrain"},
        "concurrency_limit": {"limit": 1, "collision_strategy": "ENQUEUE"},
        "pull": [
            {"prefect.deployments.steps.run_shell_script": {"script": f"sh -c '{_STAND_STILL}'"}}
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "prefect.yaml"
    file.write_text(yaml.safe_dump({"name": "held", "deployments": [deployment]}))
    return file
