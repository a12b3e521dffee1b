"""A run's artifacts in Prefect's UI: a table of its checkpoints and a report with curves.

No run depends on them: one that Prefect's server refuses is logged and left out, and one that the
server missed while it was away is shown once it is back.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal
from uuid import UUID

from prefect import runtime
from prefect.client.schemas.actions import ArtifactCreate

from evertrain_tasks.driver_session.session import Session
from evertrain_tasks.prefect_server.flow_run import deployment_of_flow_run
from evertrain_tasks.report.checkpoints import compared, is_best
from evertrain_tasks.report.escaped_markdown import link, plain
from evertrain_tasks.report.numbers import number
from evertrain_tasks.report.page import report_markdown
from train_core.errors import EvertrainError
from train_core.policy.metric_names import VALIDATION, full_names
from train_core.results import Report
from train_core.storage.records.names import workload_slug
from train_core.storage.run_folder import RunFolder
from train_core.text.shown_text import shown

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import Artifact


def artifact_key(owner: str, kind: str) -> str:
    """An artifact's key: Prefect allows lowercase letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", f"{owner}-{kind}".lower()).strip("-")


def new_artifact(
    kind: Literal["markdown", "table", "progress"], key: str, data: Any, description: str
) -> ArtifactCreate | None:
    """An artifact of the task and the flow run that call this; None outside of a flow run."""
    flow_run, task_run = runtime.flow_run.id, runtime.task_run.id
    if flow_run is None:
        return None
    return ArtifactCreate(
        type=kind,
        key=key,
        data=data,
        description=description,
        flow_run_id=UUID(str(flow_run)),
        task_run_id=UUID(str(task_run)) if task_run else None,
    )


def creator(session: Session, artifact: ArtifactCreate) -> Callable[[SyncPrefectClient], Artifact]:
    """A function that creates the artifact under the key that earlier flow runs used for theirs.

    The key begins with the deployment's name, so that Prefect shows the artifact's history; without
    a deployment, as on a command line, with the workload's.
    """
    deployment_id = deployment_of_flow_run()

    def create(client: SyncPrefectClient) -> Artifact:
        if deployment_id:
            owner = client.read_deployment(deployment_id).name
        else:
            owner = workload_slug(session.request.config.workload)
        key = artifact_key(owner, str(artifact.key))
        return client.create_artifact(artifact.model_copy(update={"key": key}))

    return create


def show(session: Session, artifact: ArtifactCreate | None) -> None:
    """Store the artifact: now, or once Prefect's server answers again."""
    if session.server and artifact:
        session.server.show(str(artifact.key), creator(session, artifact))


def show_job(session: Session, url: str) -> None:
    """Store a link to Ray's page of the job that drives the run."""
    page = link("the job and its logs in Ray's dashboard", url)
    about = f"Ray's job of {session.request.run}"
    show(session, new_artifact("markdown", "ray-job", page, about))


def show_report(report: Report, session: Session) -> None:
    """Store the run's artifacts: the checkpoints' table, and the report with its curves."""
    if session.server is None:
        return
    folder = RunFolder(session.request.storage, session.request.run)
    try:
        page = report_markdown(report, folder)
    except EvertrainError as error:
        # The run has ended; a storage that is away now must not fail it.
        session.log.add_warning(f"the report is not shown in Prefect: {error}")
        return
    table = json.dumps(checkpoint_rows(report))
    show(session, new_artifact("table", "checkpoints", table, f"Checkpoints of {report.run}"))
    show(session, new_artifact("markdown", "report", page, f"Outcome of {report.run}"))


def checkpoint_rows(report: Report) -> list[dict[str, Any]]:
    """A row for each checkpoint that the best one was chosen from, oldest first.

    Prefect shows the texts in its cells as Markdown.
    """
    full = partial(full_names, VALIDATION) if report.evaluations else dict
    return [
        {
            "checkpoint": plain(one.name),
            "step": one.step,
            "epoch": one.epoch,
            **{
                shown(name): number(value)
                for name, value in full(one.metrics).items()
                if name not in ("step", "epoch")
            },
            "best": "yes" if is_best(report, one) else "",
        }
        for one in compared(report)
    ]
