"""Whether a training would come to anything new since the last finished run of its workload."""

from __future__ import annotations

import logging

from train_core.champion.of_run import newest_gate, question_after_training
from train_core.config import TrainConfig
from train_core.datasets.protocols import SPLITS
from train_core.errors import EvertrainError
from train_core.policy.champion.changes import Inputs, changes
from train_core.policy.logins import hide_logins
from train_core.rank.data.recorded_workload import with_known_defaults
from train_core.requests import DriverRequest, RecordedPipeline
from train_core.storage.records.data_files import FileList
from train_core.storage.records.run_record import RunRecord
from train_core.storage.runs_of_storage import (
    FinishedRun,
    is_run_finished,
    recorded_runs,
)

# What the numbers may depend on, too, but changes with the machine that a night happens to run on.
_OF_THE_MACHINE = ("machine", "cpu_capability", "device", "num_workers", "threads_per_worker")
_log = logging.getLogger("train_core.driver")


def run_that_has_it(record: RunRecord, files: FileList | None, request: DriverRequest) -> str:
    """The last finished run of the workload, if nothing that counts has changed since; else empty.

    `record` and `files` are what the new run would record. Why it has to train is logged.
    """
    workload = record.config.workload
    last = _last_finished(request.storage, workload)
    if last is None:
        _log.info("no run of %s has finished yet: this one trains", workload)
        return ""
    found = changes(*_inputs_of(last, record, files, asked_shards=request.config.num_shards))
    if not found:
        return last.name
    _log.info("changed since run %s: %s. This run trains", last.name, "; ".join(found))
    return ""


def _last_finished(storage: str, workload: str) -> FinishedRun | None:
    """The newest run whose training is over, also by what it was asked last.

    One whose version waits for a person's answer, or has it, is over, too, before it has a report.
    """
    for folder, record in recorded_runs(storage):
        if record.config.workload != workload or record.requested.dry_run:
            continue
        try:
            report, newest = folder.report(), folder.newest()
            if is_run_finished(folder, report, newest, record) or question_after_training(
                folder, newest_gate(folder)
            ):
                return FinishedRun(folder, record, report or {})
        except EvertrainError as error:
            _log.warning("run %r cannot be read, and is not compared with: %s", folder.name, error)
    return None


def _inputs_of(
    last: FinishedRun, record: RunRecord, files: FileList | None, *, asked_shards: int
) -> tuple[Inputs, Inputs]:
    """What the last run came of, and what the new one would."""
    newest = last.folder.newest_request()
    # Where none were asked for, they follow the number of workers.
    shards = {"num_shards": newest.config.num_shards if asked_shards else 0}
    was = newest.config.model_copy(update=shards)
    now = record.config.model_copy(update={"num_shards": asked_shards})
    # The lists of files may be long.
    is_listed = last.record.sources != record.sources
    return (
        _inputs(last.record, was, newest.requested, _listed(last) if is_listed else None),
        _inputs(record, now, record.requested, files if is_listed else None),
    )


def _listed(last: FinishedRun) -> FileList | None:
    try:
        return last.folder.files_of(last.record)
    except EvertrainError as error:
        _log.warning("the files of run %r cannot be read: %s", last.name, error)
        return None


def _inputs(
    record: RunRecord, config: TrainConfig, pipeline: RecordedPipeline, files: FileList | None
) -> Inputs:
    scored = source = hide_logins(pipeline.infer_input or "")
    if keeps := pipeline.infer_keeps:
        scored += f" with {', '.join(keeps.names)}"
    listed = files.sources if files else {}
    return Inputs(
        datasets=record.datasets,
        config=config.deciding(),
        settings=with_known_defaults(config).without_logins().settings,
        code=record.code,
        modules=record.modules,
        packages=record.packages,
        libraries={
            name: version
            for name, version in record.fingerprint.items()
            if name not in _OF_THE_MACHINE
        },
        sources={name: source.digest for name, source in record.sources.items()},
        files={
            name: {file.name: file.digest for file in source.files}
            for name, source in listed.items()
        },
        first_weights=record.origin.digest if record.origin else "",
        scored=scored,
        scored_state=record.input_state,
        is_split_scored=source in ("", *SPLITS),
    )
