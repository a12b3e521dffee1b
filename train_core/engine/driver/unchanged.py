"""Whether a training would come to anything new since the last finished run of its workload."""

from __future__ import annotations

import logging
from typing import Any

from train_core.config import TrainConfig
from train_core.engine.progress import is_finished
from train_core.errors import EvertrainError, WorkloadError
from train_core.policy.changes import Inputs, changes
from train_core.storage.finished_runs import FinishedRun, finished_runs
from train_core.storage.run_folder import RunFolder, RunRecord
from train_core.workload import SPLITS, load_workload

# What the numbers may depend on, too, but changes with the machine that a night happens to run on.
_OF_THE_MACHINE = ("machine", "cpu_capability", "device", "num_workers", "threads_per_worker")
_log = logging.getLogger("train_core.driver")


def run_that_has_it(record: RunRecord, asked: TrainConfig, storage: str) -> str:
    """The last finished run of the workload, if nothing that counts has changed since; else empty.

    `record` is what run.json would say of the new run, and `asked` what it was asked for. Why it
    has to train is logged.
    """
    last = _last_finished(storage, record.config.workload)
    if last is None:
        _log.info("no run of %s has finished yet: it trains", record.config.workload)
        return ""
    found = changes(_inputs_of(last, asked), _inputs(record, asked, record.pipeline))
    if not found:
        return last.name
    _log.info("since run %s: %s: it trains", last.name, "; ".join(found))
    return ""


def _last_finished(storage: str, workload: str) -> FinishedRun | None:
    """The newest run whose training is over, also by what it was asked last."""
    for run in finished_runs(storage, workload):
        try:
            if _is_over(run.folder):
                return run
        except EvertrainError as error:
            _log.warning(
                "run %r cannot be read, so it is no run to compare with: %s", run.name, error
            )
    return None


def _is_over(folder: RunFolder) -> bool:
    checkpoints = folder.checkpoints()
    return bool(checkpoints) and is_finished(checkpoints[-1], folder.asked().config)


def _inputs_of(last: FinishedRun, asked: TrainConfig) -> Inputs:
    newest = last.folder.asked()
    found = newest.config
    if not asked.num_shards:
        # They followed the number of workers, as they do now.
        found = found.model_copy(update={"num_shards": 0})
    return _inputs(last.record, found, newest.pipeline)


def _inputs(record: RunRecord, config: TrainConfig, pipeline: dict[str, Any]) -> Inputs:
    scored = str(pipeline.get("infer_input", ""))
    return Inputs(
        datasets=record.datasets,
        config=config.deciding(),
        settings=_settings(config),
        code=record.code,
        libraries={
            name: version
            for name, version in record.fingerprint.items()
            if name not in _OF_THE_MACHINE
        },
        first_weights=record.origin.digest if record.origin else "",
        scored=scored,
        scored_digest=record.input_digest,
        is_split_scored=scored in ("", *SPLITS),
    )


def _settings(config: TrainConfig) -> dict[str, Any]:
    """The workload's settings with its defaults, as far as it still knows them."""
    try:
        found = load_workload(config.workload, config.settings).settings
    except WorkloadError:
        return config.settings
    return dict(found.model_dump(mode="json"))
