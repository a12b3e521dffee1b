"""The checks before any compute: what cannot be done is refused in seconds, in one line."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from train_core.cluster.resources import check_resources
from train_core.config import LOCAL, TrainConfig, WorkloadTraining
from train_core.datasets.files import state_of
from train_core.datasets.forms import (
    forms_in,
)
from train_core.datasets.protocols import SPLITS, Dataset, Stream, is_stream
from train_core.datasets.recorded import describe_data
from train_core.driver.preparing.init_source import find_origin
from train_core.errors import ConfigError, RunConflictError
from train_core.rank.checkpoint.init_from import InitialState, fitted_with
from train_core.rank.checkpoint.progress import Progress
from train_core.rank.data.fitted import entry_of, fit, give
from train_core.rank.data.inputs import open_input
from train_core.rank.data.recorded_workload import (
    check_continuation,
    check_settings,
    files_in_record,
    load_recorded,
    newest_files,
    with_defaults,
    with_login,
    with_monitor,
    without_login,
)
from train_core.rank.distributed.fsdp import check_passes
from train_core.rank.metrics.evaluation_loop import check_monitor, check_split
from train_core.rank.model_checks import check_model
from train_core.requests import DriverRequest, Prepared, ScoringRequest
from train_core.scoring.gate_metric import check_gate
from train_core.storage.objects.store import Store
from train_core.storage.records.data_files import FileList
from train_core.storage.records.names import check_new_run_name
from train_core.storage.records.run_record import NEWEST_STEP_RULES, Origin, RunRecord
from train_core.storage.run_checks import check_flow_run
from train_core.storage.run_folder import RunFolder
from train_core.tools.provenance import code_of, fingerprint
from train_core.workload import (
    Workload,
    fits,
    indexed,
    load_split,
    pinned_files,
    recorded_forms,
)

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checked:
    """A request that can be carried out."""

    config: TrainConfig
    """With what the trainer of a training function decides."""
    prepared: Prepared
    datasets: Mapping[str, Dataset | Stream]
    origin: Origin | None
    """Whose weights the run begins with."""
    files: FileList | None
    """The files that the workload names."""
    fitted: bytes | None = None
    """What the workload fitted to its training split."""
    plan: Callable[[TrainConfig], str] | None = None
    """What a run would do, in lines; None: a dry run trains one step."""


def effective(request: DriverRequest) -> TrainConfig:
    """The configuration that the driver goes by, once for all of its stages.

    It has the workload's monitor, the shards and GPUs that the run began with, and of a dry run one
    step.
    """
    config = with_monitor(request.config)
    folder = RunFolder(request.storage, request.run)
    if folder.exists():
        begun = folder.record().config
        is_workloads = isinstance(config.trainable, WorkloadTraining)
        if is_workloads and not request.config.monitor_order:
            config = config.model_copy(
                update={"monitor_order": begun.monitor_order or config.monitor_order}
            )
        if not config.num_shards and config.has_effect("num_shards"):
            if config.num_workers > begun.shards:
                raise ConfigError(
                    f"run {request.run!r} has {begun.shards} shards, so at most {begun.shards} "
                    f"workers can share them: num_workers is {config.num_workers}"
                )
            config = config.model_copy(update={"num_shards": begun.shards})
        if config.gpus_per_worker is None:
            config = config.model_copy(update={"gpus_per_worker": begun.gpus_per_worker})
    if request.dry_run and config.trainable.trains_in_dry_run:
        return config.model_copy(update={"max_steps": 1})
    return config.fixed()


def check(folder: RunFolder, request: DriverRequest) -> Checked:
    """Check all that can be checked without compute; writes nothing that stays.

    Raises ConfigError for what is wrong.
    """
    config, resumed = request.config, folder.exists()
    if resumed:
        check_request_continues(folder, request)
    else:
        check_new_run_name(folder.name)
    check_settings(config)
    workload = load_recorded(folder, config)
    # What metrics are measured may depend on what is fitted.
    is_known = resumed or not fits(workload)
    if is_known:
        _check_metrics(workload, config, request, is_new=not resumed)
    if config.ray_address == LOCAL:
        check_resources(config)
    names_files = not resumed and workload.sources()
    earlier = newest_files(request.storage, config.workload) if names_files else None
    files = pinned_files(workload, earlier)
    datasets: dict[str, Dataset | Stream] = {
        split: load_split(workload, split) if split == "train" else indexed(workload, split)
        for split in SPLITS
    }
    num_samples = {split: check_split(dataset, split) for split, dataset in datasets.items()}
    plan = config.step_plan(num_samples["train"])
    origin = _origin(folder, request)
    fitted = None if resumed else _fit(workload, config, datasets["train"], origin)
    if not is_known:
        _check_metrics(workload, config, request, is_new=True)
    if not resumed:
        _check_model(workload, config)
    if config.strategy == "fsdp":
        check_passes(plan, datasets["train"], config.num_workers)
    if source := request.pipeline.infer_input:
        forms = recorded_forms(workload) if resumed else forms_in(datasets["validation"])
        open_input(source, workload, request.pipeline.infer_keeps, forms=forms)
    if origin is not None and not (resumed and folder.checkpoints()):
        _check_origin(origin, config, workload)
    if not resumed:
        Store(request.storage).probe()
    prepared = Prepared(
        run=folder.name,
        url=folder.url,
        resumed=resumed,
        num_samples=num_samples,
        total_steps=Progress().total_steps(config, plan),
    )
    return Checked(config, prepared, datasets, origin, files, fitted)


def check_scoring(folder: RunFolder, request: ScoringRequest) -> Prepared:
    """Check the input of a batch inference of a run that exists. Raises ConfigError."""
    if not request.config.has_workload:
        raise ConfigError(
            f"run {folder.name!r} is of the training function {request.config.workload}, and no "
            "predictor says how its folders are used: continue the run with predictor and workload"
        )
    workload = load_recorded(folder, request.config)
    source = open_input(request.infer_input, workload, request.infer_keeps)
    return Prepared(
        run=folder.name,
        url=folder.url,
        resumed=True,
        num_samples={"infer": source.num_rows},
        total_steps=0,
    )


def check_request_continues(folder: RunFolder, request: DriverRequest) -> None:
    """Check that the request is of the run that exists, and compare the surroundings.

    Raises RunConflictError for what may not change, and ConfigError in other surroundings if
    `strict` is set.
    """
    config, record = request.config, folder.record()
    check_flow_run(folder, request.flow_run)
    check_continuation(folder, config)
    asked = {"experiment": request.experiment, "dry_run": request.dry_run}
    # What is scored may be another thing every time; where MLflow shows the run may not.
    recorded = record.requested.model_dump(exclude_unset=True)
    changed = {
        name: (recorded[name], asked[name])
        for name in asked
        if recorded.get(name, asked[name]) != asked[name]
    }
    if changed:
        raise RunConflictError(folder.name, changed)
    was = record.fingerprint
    differences = {
        name: (was.get(name), now)
        for name, now in fingerprint(config).items()
        if was.get(name) != now
    }
    if not differences:
        return
    shown = ", ".join(f"{name} was {old}, is {now}" for name, (old, now) in differences.items())
    if config.strict:
        raise ConfigError(
            f"run {folder.name!r} was begun in other surroundings ({shown}) and strict is set: "
            "continue it in its first surroundings, or without strict"
        )
    _log.warning("the surroundings changed, and so may the bits of the results: %s", shown)


def _origin(folder: RunFolder, request: DriverRequest) -> Origin | None:
    """Whose weights the run begins with, with the login that the configuration has for it.

    Raises ConfigError if there are none.
    """
    config = request.config
    if not config.init_from:
        return None
    if folder.exists():
        recorded = folder.record().origin
        # Later they are no longer needed, and their login is not, either.
        if recorded is None or folder.checkpoints():
            return recorded
        return with_login(recorded, config, folder.storage)
    found = find_origin(config.init_from, request.storage, request.tracking_uri)
    return with_login(without_login(found), config, folder.storage)


def _check_origin(origin: Origin, config: TrainConfig, workload: Workload[Any]) -> None:
    """Give the first weights to a model once, as every worker will do it.

    Raises ConfigError if they do not fit, or if a worker could not reach them with what is
    recorded and asked, CheckpointError if they were altered.
    """
    first = InitialState.read(origin, config)
    model = workload.model()
    first.give_weights(model)
    first.give_optimizer(model, workload.optimizer(model))


def _fit(
    workload: Workload[Any], config: TrainConfig, train: Dataset | Stream, origin: Origin | None
) -> bytes | None:
    """What a run that begins has fitted: the workload has it, too. Raises WorkloadError."""
    if not fits(workload):
        return None
    found = fitted_with(origin, config.workload) if origin is not None else None
    if found is None:
        return fit(workload, train)
    _log.info("what was fitted is that of the run whose weights this one begins with")
    give(workload, found)
    return found


def _check_model(workload: Workload[Any], config: TrainConfig) -> None:
    """Raise WorkloadError for a model that could not be trained exactly.

    The workers check it as well; one that is sharded may not fit in here.
    """
    if config.strategy == "fsdp":
        return
    try:
        model = workload.model()
    except Exception:  # noqa: BLE001 (a worker may have a GPU that this process lacks)
        _log.info("model() fails in this process: the workers will call it", exc_info=True)
    else:
        check_model(model, config.shards)


def _check_metrics(
    workload: Workload[Any], config: TrainConfig, request: DriverRequest, *, is_new: bool
) -> None:
    """Raise ConfigError if the monitor, or what the gate asks for, is not measured."""
    check_monitor(workload, config, is_new=is_new)
    if request.pipeline.gate:
        check_gate(workload, config, request.pipeline.gate)


def new_record(
    request: DriverRequest,
    config: TrainConfig,
    datasets: Mapping[str, Dataset | Stream],
    origin: Origin | None = None,
    files: FileList | None = None,
    fitted: bytes | None = None,
) -> RunRecord:
    """What `run.json` will say of a run that begins."""
    code = code_of(config)
    record = RunRecord(
        name=request.run,
        flow_run=request.flow_run,
        created_at=datetime.now(UTC).isoformat(),
        config=with_defaults(config).recorded(),
        pipeline=request.recorded().model_dump(),
        fingerprint=fingerprint(config),
        datasets={
            split: describe_data(dataset)
            | ({} if is_stream(dataset) else {"columns": forms_in(dataset)})
            for split, dataset in datasets.items()
        },
        input_state=_input_state(request.pipeline.infer_input or ""),
        code=code.code,
        modules=code.modules,
        packages=code.packages,
        fitted=None if fitted is None else entry_of(fitted),
        origin=without_login(origin) if origin else None,
        search=request.search,
        step_rules=NEWEST_STEP_RULES,
    )
    return files_in_record(record, files)


def with_surroundings(record: RunRecord, config: TrainConfig) -> RunRecord:
    """The record of a run whose workers' device is known now."""
    return record.model_copy(
        update={"config": with_defaults(config).recorded(), "fingerprint": fingerprint(config)}
    )


def _input_state(source: str) -> str:
    """What tells one state of the files at `source` from another; empty for a split, or none."""
    return "" if not source or source in SPLITS else state_of(source)
