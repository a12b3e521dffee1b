"""The outcome of a pipeline run, for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from tasks.metrics import full_metrics
from train_core.results import Report


def print_summary(report: Report, report_uri: str, console: Console) -> None:
    """Print the outcome. The last line is `report: <address of report.json>`."""
    console.print(_checkpoints(report))
    console.print(_facts(report))
    # Not through rich, which would wrap a long address.
    console.file.write(f"report: {report_uri}\n")
    console.file.flush()


def number(value: object) -> str:
    """A metric as it is shown: four digits, or a dash for what is missing."""
    return f"{value:.4f}" if isinstance(value, float) else "-" if value is None else str(value)


def _checkpoints(report: Report) -> Table:
    evaluations = sorted(
        (one for one in report.evaluations if one.split == "validation"),
        key=lambda one: one.checkpoint.step,
    )
    names = sorted({name for one in evaluations for name in full_metrics(one)})
    table = Table(title=f"Checkpoints of {report.run}", title_justify="left")
    for heading in ("checkpoint", "step", "epoch", *names, ""):
        table.add_column(heading, justify="left" if heading == "checkpoint" else "right")
    for one in evaluations:
        values = full_metrics(one)
        is_best = one.checkpoint.name == report.best.name
        table.add_row(
            one.checkpoint.name,
            str(one.checkpoint.step),
            str(one.checkpoint.epoch),
            *(number(values.get(name)) for name in names),
            "best" if is_best else "",
            style="bold green" if is_best else "",
        )
    return table


def _facts(report: Report) -> Table:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    test = ", ".join(f"{name} {number(value)}" for name, value in report.test_metrics.items())
    grid.add_row("test", f"{test} ({report.best.name})")
    grid.add_row(
        "seconds", ", ".join(f"{stage} {spent:.1f}" for stage, spent in report.seconds.items())
    )
    grid.add_row(
        "training", f"{report.train.samples_per_s:,.0f} samples/s, {report.train.step} steps"
    )
    grid.add_row("predictions", f"{report.predictions.uri} ({report.predictions.num_rows} rows)")
    if report.tracking.url:
        grid.add_row("MLflow", report.tracking.url)
    grid.add_row("see", "`evertrain ui` (or `make ui`) opens MLflow's and Prefect's pages")
    return grid
