"""The outcome of a pipeline run, for the terminal."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from tasks.report.checkpoints import compared
from tasks.report.numbers import number
from train_core.policy.stop_reasons import StopReason
from train_core.results import Report, TrainResult


def print_summary(report: Report, report_uri: str, console: Console) -> None:
    """Print the outcome. The last line is `report: <address of report.json>`."""
    console.print(_checkpoints(report))
    # Not as rich's tables: addresses are there to be copied, so they may not be wrapped.
    console.print(_facts(report), highlight=False, markup=False, soft_wrap=True)
    console.print(f"report: {report_uri}", highlight=False, markup=False, soft_wrap=True)


def _checkpoints(report: Report) -> Table:
    chosen_from = compared(report)
    # A training function may report the epoch as a metric, too.
    names = sorted({name for one in chosen_from for name in one.metrics} - {"step", "epoch"})
    measured = "on validation" if report.evaluations else "as reported"
    table = Table(title=f"Checkpoints of {report.run}, {measured}", title_justify="left")
    table.add_column("checkpoint", no_wrap=True)
    for heading in ("step", "epoch", *names, ""):
        table.add_column(heading, justify="right")
    for one in chosen_from:
        is_best = one.name == report.best.name
        table.add_row(
            one.name,
            str(one.step),
            str(one.epoch),
            *(number(one.metrics.get(name)) for name in names),
            "best" if is_best else "",
            style="bold green" if is_best else "",
        )
    return table


def _facts(report: Report) -> str:
    test = ", ".join(f"{name} {number(value)}" for name, value in report.test_metrics.items())
    seconds = ", ".join(f"{stage} {spent:.1f}" for stage, spent in report.seconds.items())
    timeline = ", ".join(f"{event} {at:.1f}" for event, at in report.timeline.items())
    scored = report.predictions
    facts = {
        "best": "" if test else report.best.uri,
        "test": test and f"{test} ({report.best.name})",
        "seconds": seconds,
        "since start": timeline,
        "training": _length(report.train),
        "predictions": f"{scored.uri} ({scored.num_rows} rows)" if scored else "",
        "MLflow": report.tracking.url,
        "see": "`evertrain ui`, in this folder, opens MLflow's and Prefect's pages",
    }
    return "\n".join(f"{name:<12} {value}" for name, value in facts.items() if value)


def _length(train: TrainResult) -> str:
    if train.stopped_by == StopReason.FUNCTION_END:
        # Its end counts as one more.
        return f"{train.step - 1} reports"
    return f"{train.samples_per_s:,.0f} samples/s, {train.step} steps"
