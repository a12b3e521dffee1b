"""A flow that stands still where it is told to, and its deployment with one slot."""

from __future__ import annotations

import os
import time
from pathlib import Path
from uuid import UUID

from prefect import flow, runtime
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.client.schemas.objects import ConcurrencyLimitStrategy, ConcurrencyOptions
from prefect.workers.process import ProcessWorker

NOTES = "EVERTRAIN_TEST_HELD_NOTES"
"""The folder in which a flow run says where it is, and finds how long it has to stay there."""
POOL = "evertrain"
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


def deploy(client: SyncPrefectClient) -> UUID:
    """Make a work pool and the deployment `retrain/hold`, which has the delivered one's limit.

    Without the commands of Prefect's, of which each takes 1.5 CPU seconds.
    """
    template = ProcessWorker.get_default_base_job_template()
    client.create_work_pool(
        WorkPoolCreate(name=POOL, type=ProcessWorker.type, base_job_template=template)
    )
    script = {"script": f"sh -c '{_STAND_STILL}'"}
    return client.create_deployment(
        client.create_flow(hold),
        "hold",
        entrypoint=f"{__name__}.{hold.fn.__name__}",
        work_pool_name=POOL,
        concurrency_limit=1,
        concurrency_options=ConcurrencyOptions(collision_strategy=ConcurrencyLimitStrategy.ENQUEUE),
        pull_steps=[{"prefect.deployments.steps.run_shell_script": script}],
    )
