"""The outcome of a pipeline run, for the terminal."""

from __future__ import annotations

import json
from collections.abc import Mapping

from evertrain_flows.cli.output.terminal import Screen
from evertrain_tasks.report.checkpoints import compared, is_best
from evertrain_tasks.report.numbers import number
from train_core.policy.metric_names import VALIDATION, is_of
from train_core.policy.stop_reasons import StopReason
from train_core.results import Report, TrainResult

_MOST_SHOWN = 200
"""Characters of what a training function returned; report.json has all of it."""


def print_summary(report: Report, report_uri: str, screen: Screen) -> None:
    """Print the outcome. The last line is `report: <address of report.json>`."""
    _print_checkpoints(report, screen)
    # Not as a table: addresses are there to be copied, so they may not be wrapped.
    for name, value in _facts(report).items():
        if value:
            screen.line(f"{name:<12} {value}")
    screen.line(f"report: {report_uri}")


def _print_checkpoints(report: Report, screen: Screen) -> None:
    chosen_from = compared(report)
    if not chosen_from:
        return
    # A training function may report the epoch as a metric, too.
    names = sorted({name for one in chosen_from for name in one.metrics} - {"step", "epoch"})
    measured = "on validation" if report.evaluations else "as reported"
    best = [is_best(report, one) for one in chosen_from]
    screen.table(
        ["checkpoint", "step", "epoch", *names, ""],
        [
            [
                *(one.name, str(one.step), str(one.epoch)),
                *(number(one.metrics.get(name)) for name in names),
                "best" if is_chosen else "",
            ]
            for one, is_chosen in zip(chosen_from, best, strict=True)
        ],
        title=f"Checkpoints of {report.run}, {measured}",
        highlighted=best.index(True) if True in best else None,
        right=True,
    )


def _facts(report: Report) -> dict[str, str]:
    test, train = _values(report.test_metrics), report.train
    seconds = ", ".join(f"{stage} {spent:.1f}" for stage, spent in report.seconds.items())
    timeline = ", ".join(f"{event} {at:.1f}" for event, at in report.timeline.items())
    scored = report.predictions
    return {
        "best": _best(report) if not test else "",
        # Without a checkpoint there is no table of them.
        "last report": _values(train.metrics) if report.best is None else "",
        "returned": _returned(train),
        "chosen by": _chosen_by(report),
        "test": f"{test} ({report.best.name})" if report.best and test else "",
        "gate": report.gate.summary if report.gate else "",
        "seconds": seconds,
        "since start": timeline,
        "training": _length(train),
        "predictions": f"{scored.uri} ({scored.num_rows} rows), {report.scored_with}"
        if scored
        else "",
        "MLflow": report.tracking.url,
        "see": "`evertrain ui`, in this folder, opens MLflow's and Prefect's pages",
    }


def _values(metrics: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name} {number(value)}" for name, value in metrics.items())


def _best(report: Report) -> str:
    return report.best.uri if report.best else "none, as no checkpoint was reported"


def _returned(train: TrainResult) -> str:
    """What a training function returned; empty if it is nothing."""
    if train.return_value is None:
        return ""
    text = json.dumps(train.return_value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}…"


def _chosen_by(report: Report) -> str:
    """The metric that chose the best checkpoint, if the table has no column of it."""
    train = report.train
    is_shown = not report.evaluations or is_of(VALIDATION, train.monitor)
    # Without a value of it, the newest checkpoint counts as the best.
    if is_shown or report.best is None or report.best.metrics.get(train.monitor) is None:
        return ""
    lowest = "highest" if train.monitor_order == "max" else "lowest"
    return f"the {lowest} {train.monitor} that the training reported"


def _length(train: TrainResult) -> str:
    if train.stopped_by == StopReason.FUNCTION_END:
        # Its end counts as one more.
        return f"{train.step - 1} reports"
    return f"{train.samples_per_s:,.0f} samples/s, {train.step} steps"
