"""The description of a run in MLflow: what the gate decided, what was trained, how it ended."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from train_core.champion.of_run import result_now
from train_core.errors import CheckpointError
from train_core.policy.end_status import EndStatus
from train_core.policy.metric_names import TEST, TRAIN, full_names
from train_core.policy.stop_reasons import StopReason
from train_core.results import CheckpointSummary, Report
from train_core.storage.coordination import lease
from train_core.storage.records.run_record import RunRecord
from train_core.storage.run_folder import Commit, RunFolder
from train_core.text.shown_text import without_secrets
from train_core.tracking.description.parameters import DIGEST_CHARS, set_parameters

_MAX_TEXT = 40
_REASONS = {
    StopReason.EPOCHS: "all epochs are trained",
    StopReason.MAX_STEPS: "max_steps is reached",
    StopReason.EARLY_STOPPING: "the monitored metric improved no more",
    StopReason.MAX_DURATION: "max_duration_s is over",
    StopReason.FUNCTION_END: "the training function returned",
}


_ENDS: dict[str, str] = {
    EndStatus.FINISHED: "ended at its limit",
    EndStatus.FAILED: "failed",
    EndStatus.KILLED: "was stopped on request",
}
_OPEN = {"RUNNING": "Running", "SCHEDULED": "Waiting"}
"""How the line begins that tells of a run that has not ended, by MLflow's status."""


@dataclass(frozen=True)
class Outcome:
    """The end of a pipeline, as far as its description tells it."""

    best: CheckpointSummary | None
    """None: a training function reported no checkpoint."""
    test_metrics: Mapping[str, float | None]
    decision: str = ""
    """What the gate decided, in a line of Markdown; empty: no gate was asked."""
    flow_run: str = ""
    """The flow run that ended the pipeline, in Markdown; empty: unknown."""

    @classmethod
    def of(cls, folder: RunFolder, report: Report) -> Outcome:
        """The outcome that the report of a run tells."""
        # A person may have answered since the report was written.
        decision = result_now(folder, report.gate).summary if report.gate else ""
        return cls(report.best, report.test_metrics, decision, report.flow_run)

    def metrics(self, monitor: str) -> dict[str, float | None]:
        """The monitored metric and those of the test split."""
        known = self.best.metrics if self.best else {}
        chosen = {name: value for name, value in known.items() if name == monitor}
        return chosen | full_names(TEST, self.test_metrics)


@dataclass(frozen=True)
class Links:
    """Where a run can be looked at outside of MLflow, in Markdown; empty where it cannot."""

    flow_run: str = ""
    ray_job: str = ""


def note(
    record: RunRecord,
    newest: Commit | None,
    status: str,
    outcome: Outcome | None,
    *,
    gate: str,
    cut_off: str,
    folder_url: str,
    links: Links,
    failure: str = "",
) -> str:
    """Five lines of Markdown, without the secrets of URLs; of a run that failed, first why.

    `newest` is the newest checkpoint, `status` MLflow's of the run, `gate` what the gate decided,
    `cut_off` how the attempt before the newest ended; empty: it was the first.
    """
    best = "none, as no checkpoint was reported" if outcome else "not chosen yet"
    if outcome and outcome.best:
        metrics = [
            f"{name} {_number(v)}" for name, v in outcome.metrics(record.config.monitor).items()
        ]
        best = f"`{outcome.best.name}` (step {outcome.best.step})"
        best += f": {', '.join(metrics)}" if metrics else ""
    where = [f"run folder `{folder_url}`"]
    if links.flow_run:
        where.append(f"flow run {links.flow_run}")
    if links.ray_job:
        where.append(f"[Ray's job]({links.ray_job})")
    failed = {"Failed": failure.replace("`", "'")} if failure and status == "FAILED" else {}
    lines = failed | {
        # MLflow's page folds what is below the first four or five lines of text.
        "Gate": gate or "not asked",
        "Best": best,
        "Trained": _trained(record),
        _OPEN.get(status, "Ended"): _ended(record, newest, status, cut_off),
        "Where": ", ".join(where),
    }
    return without_secrets("\n".join(f"- **{name}**: {text}" for name, text in lines.items()))


def end_before(folder: RunFolder, attempt: int) -> str:
    """How the attempt before this one ended, in words; empty if it was the first, or is unknown."""
    if attempt < 2:
        return ""
    try:
        _, heartbeat = lease.read(folder.store, attempt - 1)
    except (CheckpointError, FileNotFoundError):
        return ""
    # Who lives on gives the attempt free, and is not at its end.
    how = "lost a worker" if heartbeat.released else "was killed"
    return f"attempt {attempt - 1} {_ENDS.get(heartbeat.end, how)}"


def _trained(record: RunRecord) -> str:
    name = record.config.shown_name
    data = ", ".join(_data(record.datasets))
    chosen = ", ".join(f"{key} {_short(value)}" for key, value in set_parameters(record).items())
    begun = f", beginning with `{record.origin.uri}`" if record.origin else ""
    return (
        f"`{name}`{f' on {data}' if data else ''}{begun}; "
        f"{f'with {chosen}' if chosen else 'all parameters are defaults'}"
    )


def _data(datasets: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Each split with its samples; the training's with its digest, as that of the report."""
    for split, facts in datasets.items():
        digest = f", `{facts['digest'][:DIGEST_CHARS]}`" if facts.get("digest") else ""
        shown = digest if split == TRAIN else ""
        yield f"{split} ({facts.get('samples', '?')} samples{shown})"


def _ended(record: RunRecord, newest: Commit | None, status: str, cut_off: str) -> str:
    begun = record.created_at[:16].replace("T", " ")
    if newest is None:
        so_far = "nothing is committed yet" if status == "RUNNING" else "nothing was committed"
    else:
        manifest, spent_s = newest.manifest, newest.manifest.elapsed_s
        so_far = f"step {manifest.step}, epoch {manifest.epoch}"
        if newest.name.attempt > 1:
            so_far += f", in attempt {newest.name.attempt}"
            so_far += f" ({cut_off})" if cut_off else ""
        if spent_s:
            so_far += f", after {spent_s:,.{2 if spent_s < 10 else 0}f} s of training"
            if manifest.samples_seen:
                so_far += f" at {manifest.samples_seen / spent_s:,.0f} samples/s"
        if manifest.processors:
            so_far += f", computed on {', then on '.join(manifest.processors)}"
        if manifest.is_last:
            so_far += f"; {_REASONS[StopReason(manifest.stopped_by)]}"
    if status == "SCHEDULED":
        return f"for a person's answer, {so_far}"
    return f"since {begun} UTC, {so_far}" if status == "RUNNING" else f"{status}, {so_far}"


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"


def _short(value: Any) -> str:
    # A password that is cut in two would not be recognized any more.
    text = without_secrets(value if isinstance(value, str) else json.dumps(value))
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]}…"
