"""What a run shows in Prefect's UI: a table of its checkpoints and a report with curves.

Artifacts are there to be looked at: one that Prefect's server refuses is logged and left out, and
what a server missed that was away is shown once it is back.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any, Literal
from uuid import UUID

from prefect import runtime
from prefect.client.schemas.actions import ArtifactCreate

from tasks.metrics import full_metrics
from tasks.session import Session
from train_core.results import Report
from train_core.storage.names import CURVES_PNG, REPORT_JSON
from train_core.storage.run_folder import RunFolder


def artifact_key(kind: str, run: str) -> str:
    """An artifact's key: Prefect allows lowercase letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", f"{kind}-{run}".lower()).strip("-")


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


def show(session: Session, artifact: ArtifactCreate | None) -> None:
    """Store the artifact: now, or once Prefect's server answers again."""
    if session.server and artifact:
        session.server.show(str(artifact.key), lambda client: client.create_artifact(artifact))


def show_job(session: Session, url: str) -> None:
    """Store a link to Ray's page of the job that drives the run."""
    run = session.request.run
    link = f"[the job and its logs in Ray's dashboard]({url})"
    show(
        session, new_artifact("markdown", artifact_key("ray-job", run), link, f"Ray's job of {run}")
    )


def show_report(report: Report, session: Session) -> None:
    """Store the run's artifacts: the checkpoints' table, and the report with its curves."""
    request, run = session.request, report.run
    folder = RunFolder(request.storage, request.run)
    table = json.dumps(checkpoint_rows(report))
    key = artifact_key("checkpoints", run)
    show(session, new_artifact("table", key, table, f"Checkpoints of {run}"))
    page = report_markdown(report, folder)
    show(session, new_artifact("markdown", artifact_key("report", run), page, f"Outcome of {run}"))


def checkpoint_rows(report: Report) -> list[dict[str, Any]]:
    """A row for each checkpoint that was evaluated on validation, oldest first."""
    return [
        {
            "checkpoint": one.checkpoint.name,
            "step": one.checkpoint.step,
            "epoch": one.checkpoint.epoch,
            **full_metrics(one),
            "best": "yes" if one.checkpoint.name == report.best.name else "",
        }
        for one in sorted(report.evaluations, key=lambda e: e.checkpoint.step)
        if one.split == "validation"
    ]


def report_markdown(report: Report, folder: RunFolder) -> str:
    """The outcome in Markdown: links, figures and curves."""
    lines = [
        f"# {report.run}",
        f"Best checkpoint: `{report.best.name}` (step {report.best.step})",
        "| test metric | value |\n| --- | --- |\n"
        + "\n".join(f"| {name} | {value} |" for name, value in report.test_metrics.items()),
        "| stage | seconds |\n| --- | --- |\n"
        + "\n".join(f"| {name} | {spent:.2f} |" for name, spent in report.seconds.items()),
        f"- report: `{folder.store.uri(REPORT_JSON)}`",
        f"- run folder: `{folder.url}`",
        f"- predictions: `{report.predictions.uri}` ({report.predictions.num_rows} rows)",
    ]
    if report.tracking.url.startswith("http"):
        lines.append(f"- [MLflow run]({report.tracking.url})")
    elif report.tracking.tracking_uri:
        lines.append(f"- MLflow: run `{report.tracking.run_id}`; `evertrain ui` shows it")
    # The UI shows no address of a storage, so the picture travels in the page.
    picture = base64.b64encode(folder.store.read(CURVES_PNG)).decode()
    lines.append(f"![the metrics by step](data:image/png;base64,{picture})")
    return "\n\n".join(lines)
