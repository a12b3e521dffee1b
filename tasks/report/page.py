"""The outcome of a run as a page in Markdown, beside the figures of the previous run."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from pydantic import ValidationError

from evertrain_tasks.report.checkpoints import is_best
from evertrain_tasks.report.escaped_markdown import code, link, plain, table
from evertrain_tasks.report.gate_table import evidence_markdown
from evertrain_tasks.report.numbers import number
from train_core.errors import StorageError
from train_core.policy.metric_names import TEST, VALIDATION, short_names
from train_core.results import Report
from train_core.storage.records.names import REPORT_JSON
from train_core.storage.records.run_record import RunRecord
from train_core.storage.run_folder import RunFolder
from train_core.storage.runs_of_storage import finished_runs

Datasets = Mapping[str, Mapping[str, Any]]
"""The samples of each split, and its digest if it has one, as run.json records them."""
DIGEST_CHARS = 12
SPLITS = (VALIDATION, TEST)
REPORTED = "reported"
BESIDE = (" before", " difference")


def report_markdown(report: Report, folder: RunFolder) -> str:
    """The outcome in Markdown: links, figures, those of the previous run, and curves."""
    record = folder.record()
    earlier = previous(folder, record)
    before = earlier[0] if earlier else None
    lines = [
        f"# {plain(report.run)}",
        f"Best checkpoint: {code(report.best.name)} (step {report.best.step})"
        if report.best
        else "No checkpoint was reported; the metrics are those of the last report",
        metrics_table(report, before),
        *([compared_with(*earlier, record.datasets)] if earlier else []),
        *([evidence_markdown(report.gate)] if report.gate else []),
        table(
            ["split", "samples", "data digest"],
            [
                [
                    split,
                    str(facts.get("samples", "-")),
                    str(facts.get("digest") or "-")[:DIGEST_CHARS],
                ]
                for split, facts in record.datasets.items()
            ],
        ),
        table(
            ["stage", "seconds"],
            [[name, f"{spent:.2f}"] for name, spent in report.seconds.items()],
        ),
        table(
            ["event", "seconds since the start"],
            [[event, f"{at:.2f}"] for event, at in report.timeline.items()],
        ),
        f"- report: {code(folder.store.uri(REPORT_JSON))}",
        f"- run folder: {code(folder.url)}",
    ]
    if report.predictions:
        found = report.predictions
        by = plain(report.scored_with)
        lines.append(f"- predictions: {code(found.uri)} ({found.num_rows} rows), {by}")
    if report.tracking.url.startswith("http"):
        lines.append(f"- {link('MLflow run', report.tracking.url)}")
    elif report.tracking.tracking_uri:
        lines.append(f"- MLflow: run {code(report.tracking.run_id)}; `evertrain ui` shows it")
    # The UI shows no address of a storage, so the picture travels in the page.
    picture = base64.b64encode(folder.curves()).decode()
    lines.append(f"![the metrics by step](data:image/png;base64,{picture})")
    return "\n\n".join(lines)


def previous(folder: RunFolder, record: RunRecord) -> tuple[Report, Datasets] | None:
    """The report and the data of the workload's last finished run that began before this one."""
    # One that cannot be read, or that another version of evertrain wrote, is left out.
    with suppress(StorageError):
        for run in finished_runs(folder.storage, record.config.workload, before=record.created_at):
            with suppress(ValidationError):
                return Report.model_validate(run.report), run.record.datasets
    return None


def metrics_table(report: Report, before: Report | None) -> str:
    """The best checkpoint's metrics on validation and test, beside those of the previous run.

    Of a training function, they are what it reported with the checkpoint, or last without one.
    """
    splits = SPLITS if report.evaluations else (REPORTED,)
    now, then = _of_best(report), _of_best(before) if before else {}
    beside = ("", *BESIDE) if before else ("",)
    heading = ["metric", *(f"{split}{it}" for split in splits for it in beside)]
    rows = []
    for name in dict.fromkeys(name for split in splits for name in now.get(split, {})):
        row = [name]
        for split in splits:
            value, was = now.get(split, {}).get(name), then.get(split, {}).get(name)
            row.append(number(value))
            if before:
                row += [number(was), difference(value, was)]
        rows.append(row)
    return table(heading, rows)


def compared_with(before: Report, then: Datasets, now: Datasets) -> str:
    """The name of the previous run, and which of its splits had other data."""
    others = [
        f"{split} had {_samples_before(then[split], now[split])}"
        for split in SPLITS
        if split in now and split in then and _are_others(then[split], now[split])
    ]
    sentence = f"Before: run {code(before.run)}"
    if not others:
        return sentence
    data = ", ".join(others)
    return f"{sentence}, on other data ({data}): not all of a difference is the model's"


def _samples_before(then: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    if then.get("samples") == now.get("samples"):
        return "as many samples, but others"
    return f"{plain(str(then.get('samples', '?')))} samples"


def _are_others(then: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether the split is known to have other data: by its samples, or by both digests."""
    digests = {one["digest"] for one in (then, now) if one.get("digest")}
    return then.get("samples") != now.get("samples") or len(digests) > 1


def difference(value: float | None, was: float | None) -> str:
    """The change since the previous run, with its sign; a dash where one value is missing."""
    if value is None or was is None:
        return "-"
    more = value - was
    return f"{'-' if more < 0 else '+'}{number(abs(more))}"


def _of_best(report: Report) -> dict[str, dict[str, float | None]]:
    """The metrics of the report's best checkpoint, by split and by their short names.

    Of a training function that reported no checkpoint, those of its last report.
    """
    if not report.evaluations:
        return {REPORTED: (report.best or report.train).metrics}
    return {
        one.split: short_names(one.split, one.metrics)
        for one in report.evaluations
        if is_best(report, one.checkpoint)
    }
