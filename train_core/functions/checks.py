"""The checks before a training function is run: what cannot be done is refused in seconds."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from train_core.cluster.resources import check_resources
from train_core.config import LOCAL, TrainConfig
from train_core.datasets.forms import forms_in
from train_core.datasets.protocols import Dataset, Split, Stream
from train_core.driver.preparing.preflight import Checked, check_request_continues
from train_core.errors import ConfigError, HiddenLoginError, users_code
from train_core.functions.init_folder import find_reported
from train_core.loading import load_function
from train_core.policy.champion.model_names import default_model_name
from train_core.policy.logins import has_hidden_login, hide_logins
from train_core.rank.data.inputs import open_input
from train_core.rank.data.recorded_workload import check_settings, load_recorded, newest_files
from train_core.rank.metrics.evaluation_loop import check_split
from train_core.requests import DriverRequest, Prepared
from train_core.scoring.gate_metric import check_gate
from train_core.storage.objects.store import Store
from train_core.storage.records.names import check_new_run_name
from train_core.storage.run_folder import RunFolder
from train_core.workload import Workload, fits, indexed, load_split, pinned_files, recorded_forms

_SCORED: tuple[Split, ...] = ("validation", "test")


def check_function(folder: RunFolder, request: DriverRequest) -> Checked:
    """Check all that can be checked without compute; writes nothing that stays.

    Raises ConfigError for what is wrong.
    """
    config, resumed = request.config, folder.exists()
    if request.skip_unchanged and not config.has_workload:
        raise ConfigError(
            "skip_unchanged needs workload and predictor: evertrain does not see which data the "
            f"training function {config.workload} reads, and compares those of a workload. Give "
            "them, or leave skip_unchanged out"
        )
    for name, value in config.train_loop_config.items():
        if has_hidden_login(value):
            raise HiddenLoginError(f"train_loop_config.{name} ({value})")
    if resumed:
        check_request_continues(folder, request)
        _check_returned(folder, config)
    else:
        check_new_run_name(folder.name)
    if config.ray_address == LOCAL:
        check_resources(config)
    origin = None
    if config.init_from:
        begun = folder.record().origin if resumed else None
        origin = begun or find_reported(config.init_from, request.storage)
    datasets: dict[str, Dataset | Stream] = {}
    files = None
    if config.predictor:
        load_function(config.predictor)
        check_settings(config)
        workload = load_recorded(folder, config)
        _refuse_fit(workload)
        if request.pipeline.gate:
            check_gate(workload, config, request.pipeline.gate)
        names_files = not resumed and workload.sources()
        earlier = newest_files(request.storage, config.workload) if names_files else None
        files = pinned_files(workload, earlier)
        datasets = {split: indexed(workload, split) for split in _SCORED}
        if request.skip_unchanged and files is None and not resumed:
            with users_code(
                "prepare", f"{config.workload}, whose train split skip_unchanged needs"
            ):
                datasets = {"train": load_split(workload, "train"), **datasets}
        if source := request.pipeline.infer_input:
            forms = recorded_forms(workload) if resumed else forms_in(datasets["validation"])
            open_input(source, workload, request.pipeline.infer_keeps, forms=forms)
    if not resumed:
        Store(request.storage).probe()
    prepared = Prepared(
        run=folder.name,
        url=folder.url,
        resumed=resumed,
        num_samples={split: check_split(dataset, split) for split, dataset in datasets.items()},
        total_steps=0,
    )
    plan = partial(plan_of, request, prepared)
    return Checked(config, prepared, datasets, origin, files, plan=plan)


def _refuse_fit(workload: Workload[Any]) -> None:
    if fits(workload):
        raise ConfigError(
            f"{type(workload).__name__} has fit(), and a training function trains: what the "
            "function fits belongs into the folder that it reports, where the predictor finds it. "
            "Leave fit() out"
        )


def _check_returned(folder: RunFolder, config: TrainConfig) -> None:
    """Raise ConfigError if the function has returned, and is asked for with another argument.

    It would not be called again, and its record would name what it was never called with.
    """
    newest = folder.newest()
    if newest is None or not newest.manifest.is_last:
        return
    was = folder.newest_request().config.without_logins().train_loop_config
    if config.without_logins().train_loop_config != was:
        raise ConfigError(
            f"the training function of run {folder.name!r} has returned, and its "
            f"train_loop_config was {json.dumps(was)}: leave it out, begin a new run "
            f"(`--init-from {folder.name}` gives it the best checkpoint), or go on in a copy "
            f"(`evertrain runs fork {folder.name}`)"
        )


def plan_of(request: DriverRequest, prepared: Prepared, config: TrainConfig) -> str:
    """What a run of the request would do with this configuration, in lines."""
    counted = prepared.num_samples
    each = _count(config.cpus_per_worker, "CPU")
    if config.gpus_per_worker:
        each += f" and {_count(config.gpus_per_worker, 'GPU')}"
    metric = config.monitor
    lines = {
        "train": f"{config.train_fn or config.trainer} on "
        f"{_count(config.num_workers, 'worker')}, each with {each}",
        "keep": _kept(config),
        "choose": f"the best by {metric} ({config.order})" if metric else "the newest",
        "evaluate": "nothing: there is no predictor",
        "store": hide_logins(prepared.url),
        "mirror": f"into MLflow, as {request.experiment}" if request.tracking_uri else "nothing",
    }
    if config.predictor:
        lines["evaluate"] = (
            f"those on validation ({counted['validation']} samples), the best on test "
            f"({counted['test']} samples)"
        )
        if source := request.pipeline.infer_input:
            lines["evaluate"] += f", and score {hide_logins(source)}"
    if gate := request.pipeline.gate:
        model = gate.registered_model or default_model_name(config.workload)
        lines["gate"] = f"the best is compared with the champion of the registered model {model}"
    return "\n".join(f"  {verb:<8}  {what}" for verb, what in lines.items())


def _count(number: float, what: str) -> str:
    return f"{number:g} {what}{'' if number == 1 else 's'}"


def _kept(config: TrainConfig) -> str:
    if config.keep_every_steps == 1:
        return "all checkpoints"
    rules = [f"the newest {config.keep_last}"]
    if config.monitor:
        rules.append(f"the best {config.keep_best} by {config.monitor}")
    if config.keep_every_steps:
        rules.append(f"every step that is a multiple of {config.keep_every_steps}")
    if config.keep_newer_than_s:
        rules.append(f"those younger than {config.keep_newer_than_s:g} s")
    return ", ".join(rules)
