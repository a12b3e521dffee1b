"""What a run shows in Prefect's UI: a table of its checkpoints and a report with curves.

Artifacts are there to be looked at: one that Prefect's API does not take is logged and left out.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from prefect import get_run_logger, runtime
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)
from prefect.context import FlowRunContext

from tasks.metrics import full_metrics, number
from tasks.report_page import report_markdown
from train_core.driver import DriverRequest
from train_core.results import Report
from train_core.storage.names import workload_slug
from train_core.storage.run_folder import RunFolder

P = ParamSpec("P")
R = TypeVar("R")


def artifact_key(kind: str, workload: str) -> str:
    """An artifact's key: one for each kind and deployment, under which Prefect shows its history.

    Of a flow run without a deployment, as on a command line, one for each workload. Prefect allows
    small letters, digits and dashes. Prefect's API is asked for the deployment's name, once.
    """
    context = FlowRunContext.get()
    is_deployed = context is not None and context.flow_run and context.flow_run.deployment_id
    name = str(runtime.deployment.name) if is_deployed else workload_slug(workload)
    return re.sub(r"[^a-z0-9]+", "-", f"{name}-{kind}".lower()).strip("-")


def create_artifact(
    create: Callable[..., R], kind: str, request: DriverRequest, **content: Any
) -> R:
    """What `create`, one of Prefect's functions, gives for an artifact of that kind."""
    return create(key=artifact_key(kind, request.config.workload), **content)


def best_effort(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """What `call` gives, or None if Prefect's API refuses: the pipeline goes on without it."""
    try:
        return call(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 (whatever the API's client raises)
        get_run_logger().warning("an artifact could not be stored: %s", error)
        return None


def show_job(request: DriverRequest, url: str) -> None:
    """Store a link to Ray's page of the job that drives the run."""
    best_effort(
        create_artifact,
        create_link_artifact,
        "ray-job",
        request,
        link=url,
        link_text="the job and its logs in Ray's dashboard",
        description=f"Ray's job of {request.run}",
    )


def show_report(report: Report, request: DriverRequest) -> None:
    """Store the run's artifacts: the checkpoints' table, and the report with its curves."""
    best_effort(
        create_artifact,
        create_table_artifact,
        "checkpoints",
        request,
        table=checkpoint_rows(report),
        description=f"Checkpoints of {report.run}",
    )
    # Made before Prefect is asked: it reads the storage.
    markdown = best_effort(report_markdown, report, RunFolder(request.storage, request.run))
    if markdown is not None:
        best_effort(
            create_artifact,
            create_markdown_artifact,
            "report",
            request,
            markdown=markdown,
            description=f"Outcome of {report.run}",
        )


def checkpoint_rows(report: Report) -> list[dict[str, Any]]:
    """A row for each checkpoint that was evaluated on validation, oldest first."""
    return [
        {
            "checkpoint": one.checkpoint.name,
            "step": one.checkpoint.step,
            "epoch": one.checkpoint.epoch,
            **{name: number(value) for name, value in full_metrics(one).items()},
            "best": "yes" if one.checkpoint.name == report.best.name else "",
        }
        for one in sorted(report.evaluations, key=lambda e: e.checkpoint.step)
        if one.split == "validation"
    ]
