"""The facts of run.json as parameters; those that were set are there once more, apart."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_jsonable_python

from train_core.config import TrainConfig, WorkloadTraining
from train_core.errors import WorkloadError
from train_core.loading import workload_class
from train_core.storage.records.run_record import RunRecord
from train_core.text.shown_text import without_secrets
from train_core.workload import Workload

SET = "set."
"""Parameters that differ from their defaults are there under their names with this before them."""
DATA = "data."
"""The data of the splits, which nobody sets, are there under the splits' names with this before."""
DIGEST_CHARS = 12
"""Enough to tell data apart, and as many as the report shows."""
_MAX_LENGTH = 6000


def parameters(record: RunRecord) -> dict[str, str]:
    """The configuration, the workload's settings, the pipeline's parameters and the data.

    Each is there under its name, whether somebody set it or not; `set.` and the name is there for
    each that differs from its default.
    """
    apart = {f"{SET}{name}": value for name, value in set_parameters(record).items()}
    found = _all(record) | apart | _data(record)
    # A record of an earlier version, or one that somebody wrote, may have passwords.
    return {without_secrets(key): _text(value) for key, value in found.items()}


def set_parameters(record: RunRecord) -> dict[str, Any]:
    """The parameters of the training that differ from their defaults, by their names."""
    config, found = record.config, _of_training(record)
    defaults = {
        name: field.get_default(call_default_factory=True)
        for name, field in TrainConfig.model_fields.items()
    }
    # What a run derives from another parameter, or from its machines, nobody set.
    derived = {
        "num_shards": (0, config.num_workers),
        "gpus_per_worker": (None, 0, 1),
        **_monitor_of_workload(config),
    }
    defaults |= {name: found[name] for name, ones in derived.items() if found.get(name) in ones}
    defaults |= {f"settings.{name}": value for name, value in _default_settings(config).items()}
    left_out = {"workload", "train_fn", "trainer"}
    return {
        name: value
        for name, value in found.items()
        if name not in left_out and (name not in defaults or value != defaults[name])
    }


def _data(record: RunRecord) -> dict[str, str]:
    """The data of each split: MLflow's page for two runs compares parameters, and no datasets."""
    found = {}
    for split, facts in record.datasets.items():
        digest = f", {facts['digest'][:DIGEST_CHARS]}" if facts.get("digest") else ""
        found[f"{DATA}{split}"] = f"{facts.get('samples', '?')} samples{digest}"
    return found


def _all(record: RunRecord) -> dict[str, Any]:
    pipeline = {f"pipeline.{name}": value for name, value in record.pipeline.items()}
    return _of_training(record) | pipeline


def _of_training(record: RunRecord) -> dict[str, Any]:
    # `runtime_env` may hold environment variables, and those may be secrets.
    config = record.config
    left_out = {"settings", "train_loop_config", "runtime_env"} | config.trainable.without_effect
    found = config.model_dump(mode="json", exclude=left_out)
    for prefix in ("settings", "train_loop_config"):
        nested: Mapping[str, Any] = getattr(config, prefix)
        found |= {f"{prefix}.{name}": value for name, value in nested.items()}
    return found


def _default_settings(config: TrainConfig) -> dict[str, Any]:
    """The defaults of the workload's settings; none where its code cannot be loaded here."""
    if not config.has_workload:
        return {}
    try:
        fields = workload_class(config.workload).Settings.model_fields
    except WorkloadError:
        return {}
    return {
        name: to_jsonable_python(field.get_default(call_default_factory=True))
        for name, field in fields.items()
        if not field.is_required()
    }


def _monitor_of_workload(config: TrainConfig) -> dict[str, tuple[str, str]]:
    """What nobody sets of the monitor, as the workload says it."""
    try:
        is_workloads = isinstance(config.trainable, WorkloadTraining)
        kind = workload_class(config.workload) if is_workloads else Workload
    except WorkloadError:
        kind = Workload
    return {"monitor": ("", kind.monitor), "monitor_order": ("", kind.monitor_order)}


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value)
    return without_secrets(text)[:_MAX_LENGTH]
