"""The rehearsal of a workload that a configuration names, on its own data."""

from __future__ import annotations

from typing import Any

import torch

from train_core.config import TrainConfig
from train_core.loading import load_workload
from train_core.policy.findings import EVERYTHING
from train_core.rank.data.fitted import fit, give, load_without_data
from train_core.rank.data.recorded_workload import with_monitor
from train_core.rank.metrics.evaluation_loop import check_monitor
from train_core.rehearsal.rehearse import rehearse
from train_core.results import Rehearsal
from train_core.storage.records.data_files import FileList
from train_core.workload import Workload, indexed, load_split, pinned_files


def check_workload(config: TrainConfig) -> Rehearsal:
    """Rehearse the workload of a configuration without a run. Raises as `rehearse_workload`."""
    return rehearse_workload(with_monitor(config))


def rehearse_workload(
    config: TrainConfig, files: FileList | None = None, fitted: bytes | None = None
) -> Rehearsal:
    """Rehearse a workload, made and given its data as a worker does it.

    `files` are those of its sources, and `fitted` is what it fitted, if they are known. Raises
    WorkloadError for what the engine refuses, DataError for what cannot be read, and what the
    workload's own code raises.
    """
    if EVERYTHING in config.accept:
        left_out = ["all: everything is accepted"]
        return Rehearsal(tried=[], findings=[], left_out=left_out, accepted=config.accept, cpu_s=0)
    first = load_workload(config.workload, config.settings)
    at_first = dict(vars(first))
    if first.sources():
        pinned_files(first, files)
    train_set = load_split(first, "train")
    if fitted is None:
        fitted = fit(first, train_set)
    else:
        give(first, fitted)
    validation_set = indexed(first, "validation")
    # What is measured may depend on what is fitted.
    check_monitor(first, config)
    # `dataset` may set what other hooks use. Of each new workload it would read all data again.
    set_since = {
        name: value
        for name, value in vars(first).items()
        if name not in at_first or at_first[name] is not value
    }

    def new_workload() -> Workload[Any]:
        made = load_workload(config.workload, config.settings)
        vars(made).update(set_since)
        return made

    def served() -> Workload[Any]:
        return load_without_data(config, fitted)

    uses_gpu = config.rehearse_on == "gpu" and torch.cuda.is_available()
    device = torch.device("cuda" if uses_gpu else "cpu")
    found = rehearse(new_workload, served, config, train_set, validation_set, device)
    if config.rehearse_on == "gpu" and not uses_gpu:
        told = "what is particular to GPUs: torch finds none where the rehearsal runs"
        found = found.model_copy(update={"left_out": [*found.left_out, told]})
    return found.model_copy(update={"accepted": config.accept})
