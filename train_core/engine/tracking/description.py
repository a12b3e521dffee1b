"""The facts of run.json in MLflow's form: parameters, and datasets as inputs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import urlsplit

from mlflow.entities import Dataset, DatasetInput, InputTag, Param
from mlflow.utils import mlflow_tags

from train_core.engine.tracking.journal_to_mlflow import plain_key
from train_core.storage.records.run_record import RunRecord

_MAX_PARAM_LENGTH = 6000
_MAX_DIGEST_LENGTH = 36


def parameters(record: RunRecord) -> list[Param]:
    """The configuration, the workload's settings and the pipeline's parameters."""
    return [Param(plain_key(key), text) for key, text in _flat_parameters(record)]


def dataset_input(stage: str, name: str, digest: str, source: str) -> DatasetInput:
    """The data at `source`, which the digest names, as an input of a stage."""
    dataset = Dataset(
        name=name,
        digest=digest[:_MAX_DIGEST_LENGTH],
        source_type=urlsplit(source).scheme or "local",
        source=json.dumps({"uri": source}),
    )
    return DatasetInput(dataset, [InputTag(mlflow_tags.MLFLOW_DATASET_CONTEXT, stage)])


def dataset_inputs(record: RunRecord) -> Sequence[DatasetInput]:
    """The splits of the run's data."""
    name = record.config.workload.rpartition(":")[2]
    source_type, source = _dataset_source(record)
    inputs = []
    for split, found in record.datasets.items():
        # MLflow requires a digest. Where the data have none, the number of samples takes its place.
        digest = found.get("digest") or f"{found.get('samples')}-samples"
        dataset = Dataset(
            name=f"{name}-{split}",
            digest=digest[:_MAX_DIGEST_LENGTH],
            source_type=source_type,
            source=json.dumps(source),
            profile=json.dumps({"num_samples": found.get("samples")}),
        )
        inputs.append(DatasetInput(dataset, [InputTag(mlflow_tags.MLFLOW_DATASET_CONTEXT, split)]))
    return inputs


def _flat_parameters(record: RunRecord) -> Iterator[tuple[str, str]]:
    # `runtime_env` may hold environment variables, and those may be secrets.
    config = record.config
    left_out = {"settings", "train_loop_config", "runtime_env"} | config.without_effect
    asked = config.model_dump(mode="json", exclude=left_out)
    nested = {
        "settings": config.settings,
        "train_loop_config": config.train_loop_config,
        "pipeline": record.pipeline,
    }
    for prefix, values in nested.items():
        asked |= {f"{prefix}.{key}": value for key, value in values.items()}
    for key, value in asked.items():
        text = value if isinstance(value, str) else json.dumps(value)
        yield key, text[:_MAX_PARAM_LENGTH]


def _dataset_source(record: RunRecord) -> tuple[str, dict[str, Any]]:
    """The source of the data in MLflow's form: an address, or the code that loads them."""
    urls = {name: one.url for name, one in record.sources.items()}
    if len(urls) == 1:
        (url,) = urls.values()
        return urlsplit(url).scheme or "local", {"uri": url}
    of_code = {"workload": record.config.workload, "settings": record.config.settings}
    return "code", of_code | ({"sources": urls} if urls else {})
