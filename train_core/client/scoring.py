"""Scoring data with a checkpoint of a run that exists."""

from __future__ import annotations

import logging
import posixpath
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from train_core.champion.log import ModelLog
from train_core.client.driver_handle import Driver
from train_core.client.run import Run
from train_core.client.runs import open_run
from train_core.errors import ConfigError
from train_core.policy.champion.model_names import ModelAddress
from train_core.policy.logins import hide_logins
from train_core.requests import KeptColumns, ScoringRequest
from train_core.results import CheckpointSummary, ModelVersion, PredictionsResult
from train_core.stages import INFER
from train_core.storage.addresses import absolute
from train_core.storage.committed import open_result
from train_core.storage.objects.store import Store
from train_core.storage.records.manifest import PredictionsManifest
from train_core.storage.records.names import (
    LATEST,
    PREDICTIONS,
    PREDICTIONS_MANIFEST_JSON,
    CheckpointName,
)
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_reports import reported_best
from train_core.storage.runs_of_storage import is_training_finished, newest_finished
from train_core.storage.verification.checkpoints import copy_files

BEST = "best"
_log = logging.getLogger(__name__)


def infer(
    infer_input: str,
    *,
    storage: str,
    run: str = LATEST,
    checkpoint: str = BEST,
    workload: str = "",
    id_column: str = "",
    columns: Sequence[str] = (),
    output: str = "",
    on_log: Callable[[str], None] | None = print,
) -> PredictionsResult:
    """Score a split or new files with a checkpoint, without Prefect and MLflow.

    `infer_input` is a split's name, or the path or URL of tables (Parquet, CSV, TSV, JSON lines),
    images or IDX files. `run` is a run's name, `latest` (the newest finished run of `workload`, or
    of any), or a registered version, `models:/NAME@champion` or `models:/NAME/3`, which decides on
    the checkpoint, too; `checkpoint` is its name, or `best`. The predictions have the input's
    `id_column` as `id`, and its `columns` beside them. They are in the run folder; with `output`, a
    path or URL of an empty folder, they are also copied there, the manifest last.

    Raises ConfigError before any compute for what is not there or cannot be scored, DataError for
    data that cannot, and StageError with a traceback for an error in the workload.

    >>> from train_core import infer
    >>> infer("new/customers.csv", storage="runs", id_column="customer")  # doctest: +SKIP
    """
    keeps = KeptColumns(id_column=id_column, columns=tuple(columns))
    request, summary = scoring_request(
        infer_input,
        storage=absolute(storage),
        run=run,
        checkpoint=checkpoint,
        workload=workload,
        keeps=keeps,
    )
    check_output(output)
    with Driver.start(request, on_log) as driver:
        driver.prepared()
        result = driver.ask(INFER, INFER.arguments(checkpoint=summary, source=infer_input))
    return copied(request, result, output)


def scoring_request(
    infer_input: str, *, storage: str, run: str, checkpoint: str, workload: str, keeps: KeptColumns
) -> tuple[ScoringRequest, CheckpointSummary]:
    """What is asked of a driver, and the checkpoint that scores. Raises ConfigError."""
    version = _find_version(storage, run)
    if version:
        run, checkpoint = version.run, version.checkpoint
    folder = _find_run(storage, run, workload)
    summary = _find_checkpoint(folder, checkpoint)
    if version and folder.find(version.checkpoint).digest != version.checkpoint_digest:
        raise ConfigError(
            f"{version.checkpoint} of run {version.run!r} is not what was registered as "
            f"{version.address}"
        )
    # No tracking URI: batch inference is no part of the training, whose MLflow run has ended.
    request = ScoringRequest(
        storage=storage,
        run=folder.name,
        config=folder.newest_request().config,
        infer_input=infer_input,
        infer_keeps=keeps,
        model=version.address if version else "",
    )
    return request, summary


def check_output(output: str) -> None:
    """Raise ConfigError if the folder is not empty."""
    if output and (names := Store(absolute(output)).names()):
        raise ConfigError(
            f"output {hide_logins(output)} is not empty ({', '.join(names[:3])}): name a folder of "
            "its own for each inference"
        )


def copied(request: ScoringRequest, result: PredictionsResult, output: str) -> PredictionsResult:
    """The result of committed predictions, copied to the folder `output` unless that is empty.

    Raises CheckpointError if a file is not what was committed, and ConfigError if another inference
    wrote into the folder meanwhile.
    """
    if not output:
        return result
    store = RunFolder(request.storage, request.run).store
    key = f"{PREDICTIONS}/{posixpath.basename(result.uri)}"
    manifest = open_result(store, PredictionsManifest, key)
    target = Store(absolute(output))
    with tempfile.TemporaryDirectory() as folder:
        for file in manifest.files:
            here = Path(folder, file.name)
            copy_files(store, key, [file], here)
            target.upload(here / file.name, file.name)
    try:
        target.create(PREDICTIONS_MANIFEST_JSON, manifest.to_json())
    except FileExistsError:
        raise ConfigError(
            f"another inference has written into output {hide_logins(output)} meanwhile: use "
            f"neither there; this one is in {result.uri}"
        ) from None
    files = [target.uri(file.name) for file in manifest.files]
    return result.model_copy(update={"uri": target.url, "files": files})


def _find_version(storage: str, address: str) -> ModelVersion | None:
    """The version that a `models:/…` means now; None if `address` is none."""
    parsed = ModelAddress.parse(address)
    if parsed is None:
        if address.startswith("models:"):
            raise ConfigError(
                f"{address!r} names no version: models:/NAME@champion, or models:/NAME/3"
            )
        return None
    version = ModelLog(storage, parsed.name).read().resolve(parsed)
    _log.info("%s is %s", address, version.address)
    return version


def _find_run(storage: str, name: str, workload: str) -> RunFolder:
    """The run called `name`, or the newest finished one of the workload, or of any."""
    if name != LATEST:
        return open_run(storage, name).folder
    newest = newest_finished(storage, workload)
    _log.info("the newest finished run in %s is %s", storage, newest.name)
    return newest.folder


def _best_of_training(folder: RunFolder) -> str:
    """The best checkpoint of a training by `fit`, which has no report; empty: it is not over.

    Raises ConfigError if the training has ended without a checkpoint.
    """
    record = folder.record()
    config = folder.newest_request(record).config
    if not is_training_finished(folder.newest(), config):
        return ""
    run = Run(folder)
    latest = run.latest()
    # The pipeline of a flow run says in its report which one is best.
    if record.flow_run:
        return ""
    return (run.best() if config.monitor else latest).name


def _find_checkpoint(folder: RunFolder, name: str) -> CheckpointSummary:
    """The checkpoint called `name`, or the best one."""
    if name == BEST:
        best = reported_best(folder) or _best_of_training(folder)
        if not best:
            raise ConfigError(
                f"run {folder.name!r} has no report.json, so no best checkpoint yet: "
                "let it finish, or name a checkpoint"
            )
        name = best
    checkpoints = {str(one.name): one for one in folder.scan().good}
    if CheckpointName.parse(name) is None or name not in checkpoints:
        raise ConfigError(
            f"run {folder.name!r} has no checkpoint {name!r}; "
            f"it has {', '.join(checkpoints) or 'none'}"
        )
    return folder.summary(checkpoints[name])
