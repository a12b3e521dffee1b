"""What a run shows in Prefect's UI: a table of its checkpoints and a report with curves.

Artifacts are there to be looked at: one that Prefect's API does not take is logged and left out.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from prefect import get_run_logger
from prefect.artifacts import (
    create_link_artifact,
    create_markdown_artifact,
    create_table_artifact,
)

from tasks.metrics import full_metrics
from train_core.driver import DriverRequest
from train_core.results import Report
from train_core.storage.names import CURVES_PNG, REPORT_JSON
from train_core.storage.run_folder import RunFolder

P = ParamSpec("P")
R = TypeVar("R")


def artifact_key(kind: str, run: str) -> str:
    """An artifact's key: Prefect allows lowercase letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", f"{kind}-{run}".lower()).strip("-")


def best_effort(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | None:
    """What `call` gives, or None if Prefect's API refuses: the pipeline goes on without it."""
    try:
        return call(*args, **kwargs)
    except Exception as error:  # noqa: BLE001 (whatever the API's client raises)
        get_run_logger().warning("an artifact could not be stored: %s", error)
        return None


def show_job(run: str, url: str) -> None:
    """Store a link to Ray's page of the job that drives the run."""
    best_effort(
        create_link_artifact,
        link=url,
        link_text="the job and its logs in Ray's dashboard",
        key=artifact_key("ray-job", run),
        description=f"Ray's job of {run}",
    )


def show_report(report: Report, request: DriverRequest) -> None:
    """Store the run's artifacts: the checkpoints' table, and the report with its curves."""
    folder = RunFolder(request.storage, request.run)
    best_effort(
        create_table_artifact,
        table=checkpoint_rows(report),
        key=artifact_key("checkpoints", report.run),
        description=f"Checkpoints of {report.run}",
    )
    best_effort(_create_report, report, folder)


def _create_report(report: Report, folder: RunFolder) -> None:
    create_markdown_artifact(
        markdown=report_markdown(report, folder),
        key=artifact_key("report", report.run),
        description=f"Outcome of {report.run}",
    )


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
