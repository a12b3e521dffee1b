"""The runs of a storage, and the state of each.

>>> from train_core import open_run, run_status
>>> run_status(open_run("s3://bucket/runs/digits")).state  # doctest: +SKIP

Both functions raise StorageError where the storage does not answer.
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from train_core.champion.of_run import (
    Logs,
    Question,
    newest_gate,
    question_after_training,
)
from train_core.client.live import Live, last_reading
from train_core.client.run import Run, folder_of
from train_core.config import TrainConfig
from train_core.errors import CheckpointError, ConfigError
from train_core.policy.checkpoints.selection import Candidate, ranked
from train_core.policy.end_status import EndStatus
from train_core.policy.metric_names import VALIDATION, short_name
from train_core.results import Result
from train_core.storage.committed import Scan, with_files
from train_core.storage.coordination import lease
from train_core.storage.coordination.holder import Holder
from train_core.storage.coordination.stop_request import SCHEDULER, stop_request
from train_core.storage.objects.store import Store
from train_core.storage.records.run_record import RunRecord
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.runs_of_storage import is_run_finished, is_training_finished, read_runs

STOPPED_BY_SCHEDULER = "stopped by the scheduler"
"""The state of a trial's run that a search has ended before its end, or has paused."""
_DIGEST_SHOWN = 8


class RunSummary(Result):
    """A run in a list. Of one that cannot be read, only `run`, `created` and `state` are set."""

    run: str
    created: str
    """UTC, to the minute; empty if it cannot be read."""
    workload: str = ""
    """Its class, or the training function with its module, as `module:function`."""
    step: int = 0
    """Of the newest checkpoint."""
    best: float | None = None
    """The monitored metric of the best checkpoint on validation; None while there is none."""
    test: float | None = None
    """The monitored metric of the best checkpoint on the test split."""
    metric: str = ""
    samples: int | None = None
    """Of the training split."""
    data: str | None = None
    """The first digits of the training split's digest."""
    gate: str = ""
    """The version and what became of it, as `2 became champion`; empty: the gate was not asked."""
    search: str = ""
    """The search of whose trials it is one."""
    order: str = ""
    """Whether a higher or a lower value of the metric is better: `max` or `min`."""
    state: str
    """`running`, `waiting` (for a person's answer about its version), `answered` (the stages after
    that are left), `finished`, `failed` (by an error), `interrupted` (it was stopped or killed),
    `stopped by the scheduler` (of a search, whose trial it is), or what cannot be read of the run.
    """


class RunStatus(RunSummary):
    """The state of a run, with its driver and its position."""

    url: str
    checkpoints: int
    driven_by: str | None = None
    """The process that drives the run; None if there is none."""
    live: Live | None = None
    """The training's last reading of its position."""


def list_runs(storage: str) -> list[RunSummary]:
    """The runs of a storage, oldest first. A run that cannot be read is listed with its fault."""
    logs: Logs = {}
    found = read_runs(storage, lambda folder: _listed(folder, logs), _with_fault)
    return sorted(found, key=lambda one: one.created)


def folded(runs: list[RunSummary]) -> list[RunSummary]:
    """The runs, those of each search as one, which has the best of their metrics."""
    searches: dict[str, list[RunSummary]] = {}
    for one in runs:
        if one.search:
            searches.setdefault(one.search, []).append(one)
    found: list[RunSummary] = []
    for one in runs:
        if not one.search:
            found.append(one)
        elif trials := searches.pop(one.search, None):
            found.append(_as_one(trials))
    return found


def _as_one(trials: list[RunSummary]) -> RunSummary:
    measured = [one.best for one in trials if one.best is not None]
    best = min if trials[0].order == "min" else max
    states = Counter(one.state for one in trials)
    count = f"{len(trials)} run{'s' if len(trials) > 1 else ''}"
    return trials[0].model_copy(
        update={
            "run": trials[0].search,
            "step": max(one.step for one in trials),
            "best": best(measured, default=None),
            "gate": "",
            "state": f"{count}: {', '.join(f'{n} {state}' for state, n in states.items())}",
        }
    )


def run_status(run: Run | RunFolder) -> RunStatus:
    """The state of a run. A reading of an earlier attempt is left out."""
    folder = folder_of(run)
    scanned, (holder, end) = folder.scan(), lease.holder_and_end(folder.store)
    found = RunStatus(
        **_summary(folder, scanned, holder, end).model_dump(),
        url=folder.url,
        checkpoints=len(with_files(scanned.good)),
    )
    if holder is None:
        return found
    live = last_reading(folder)
    if live and live.attempt < lease.newest_attempt(folder.store):
        live = None
    return found.model_copy(update={"driven_by": str(holder), "live": live})


def _listed(folder: RunFolder, logs: Logs) -> RunSummary:
    # Its record first: what has none is no run.
    record = folder.record()
    return _summary(folder, folder.scan(), *lease.holder_and_end(folder.store), record, logs)


def _with_fault(run: str, error: Exception) -> RunSummary:
    return RunSummary(run=run, created="", state=f"cannot be read: {error}")


def _summary(
    folder: RunFolder,
    scanned: Scan,
    holder: Holder | None,
    end: str,
    record: RunRecord | None = None,
    logs: Logs | None = None,
) -> RunSummary:
    record, report = record or folder.record(), folder.report()
    gate, question, fault = _gate(folder, logs)
    train, newest = record.datasets.get("train", {}), scanned.newest
    samples, digest = train.get("samples"), train.get("digest")
    return RunSummary(
        run=folder.name,
        created=f"{record.created_at[:16]}Z",
        workload=record.config.shown_name,
        step=newest.step if newest else 0,
        best=_best_value(with_files(scanned.good), record.config),
        test=_tested_value(report, record.config),
        metric=record.config.monitor,
        samples=samples if type(samples) is int else None,
        data=digest[:_DIGEST_SHOWN] if isinstance(digest, str) and digest else None,
        gate=gate,
        **({"search": record.search.search} if record.search else {}),
        order=record.config.order,
        state=_state(folder, record, report, scanned, holder, end, question, fault),
    )


def _gate(folder: RunFolder, logs: Logs | None) -> tuple[str, Question | None, str]:
    """What became of the run's version, what a person is asked, or why that is not known."""
    try:
        found = newest_gate(folder, logs)
        question = question_after_training(folder, found)
    except (CheckpointError, ConfigError) as error:
        # One damaged decision hides no number of the run.
        fault = f"cannot be read: {error}"
        return fault, None, fault
    result = found.result if found else None
    gate = f"{result.decision.challenger.version} {result.status}" if result else ""
    return gate, question, ""


def _state(
    folder: RunFolder,
    record: RunRecord,
    report: dict[str, Any] | None,
    scanned: Scan,
    holder: Holder | None,
    end: str,
    question: Question | None,
    fault: str,
) -> str:
    if holder:
        return "running"
    for reason in scanned.newer.values():
        return f"cannot be continued: {reason}"
    if fault:
        return fault
    if end != EndStatus.FAILED and question and not question.is_answered:
        return "waiting"
    if is_run_finished(folder, report, scanned.newest, record, end):
        return "finished"
    if end == EndStatus.FAILED:
        return "failed"
    if question:
        return "answered"
    if _is_trained_trial(folder, record, scanned.newest):
        return "finished"
    return STOPPED_BY_SCHEDULER if _was_ended_by_scheduler(folder) else "interrupted"


def _is_trained_trial(folder: RunFolder, record: RunRecord, newest: Commit | None) -> bool:
    """Whether the run is a trial's whose training is over, and nothing else was asked of it.

    A search may end its driver before that has let go of the run.
    """
    asked = folder.newest_request(record)
    is_trial = record.search is not None and asked.requested == record.requested
    return is_trial and is_training_finished(newest, asked.config)


def _was_ended_by_scheduler(folder: RunFolder) -> bool:
    """Whether the scheduler of a search has ended the run's newest attempt."""
    try:
        request = stop_request(folder.store, lease.newest_attempt(folder.store))
    except CheckpointError:
        # What is damaged says nothing.
        return False
    return request is not None and request.by == SCHEDULER


def _best_value(checkpoints: list[Commit], config: TrainConfig) -> float | None:
    """The best checkpoint's value of the monitored metric."""
    candidates = [Candidate(str(c.name), c.step, c.metrics) for c in checkpoints]
    order = ranked(candidates, config.monitor, config.order)
    return order[0].metrics.get(config.monitor) if order else None


def _tested_value(report: dict[str, Any] | None, config: TrainConfig) -> float | None:
    """The best checkpoint's value of the monitored metric on the test split, by the report."""
    measured = (report or {}).get("test_metrics")
    name = short_name(VALIDATION, config.monitor)
    value = measured.get(name) if isinstance(measured, dict) else None
    return value if isinstance(value, float) else None


def unfinished_or_next(storage: str, prefix: str) -> RunFolder:
    """The last of the runs `<prefix>-001`, `<prefix>-002`, … if it has no report, else the next.

    Its folder may be without a record, if an attempt died early.
    """
    pattern = re.compile(rf"{re.escape(prefix)}-(\d{{3,}})")
    found = (pattern.fullmatch(name) for name in Store(storage).names())
    last = max((int(match[1]) for match in found if match), default=0)
    folder = RunFolder(storage, f"{prefix}-{last:03d}")
    if last and folder.report() is None:
        return folder
    return RunFolder(storage, f"{prefix}-{last + 1:03d}")
