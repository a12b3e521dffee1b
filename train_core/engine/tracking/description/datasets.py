"""The data of a run in MLflow's form: datasets as inputs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from mlflow.entities import Dataset, DatasetInput, InputTag
from mlflow.utils import mlflow_tags

from train_core.policy.logins import hide_secrets
from train_core.storage.records.run_record import RunRecord

_MAX_DIGEST_LENGTH = 36


def dataset_input(stage: str, name: str, digest: str, source: str) -> DatasetInput:
    """The data at `source`, which the digest names, as an input of a stage."""
    dataset = Dataset(
        name=name,
        digest=digest[:_MAX_DIGEST_LENGTH],
        source_type=urlsplit(source).scheme or "local",
        source=json.dumps(hide_secrets({"uri": source})),
    )
    return DatasetInput(dataset, [InputTag(mlflow_tags.MLFLOW_DATASET_CONTEXT, stage)])


def dataset_id(record: RunRecord, split: str) -> tuple[str, str]:
    """The name and the digest by which MLflow knows a split of the run's data."""
    facts = record.datasets.get(split, {})
    # MLflow requires a digest. Where the data have none, the number of samples takes its place.
    digest = facts.get("digest") or f"{facts.get('samples')}-samples"
    return f"{record.config.workload.rpartition(':')[2]}-{split}", digest[:_MAX_DIGEST_LENGTH]


def dataset_inputs(record: RunRecord) -> Sequence[DatasetInput]:
    """The splits of the run's data."""
    source_type, source = _dataset_source(record)
    inputs = []
    for split, found in record.datasets.items():
        name, digest = dataset_id(record, split)
        dataset = Dataset(
            name=name,
            digest=digest,
            source_type=source_type,
            source=json.dumps(hide_secrets(source)),
            profile=json.dumps({"num_samples": found.get("samples")}),
        )
        inputs.append(DatasetInput(dataset, [InputTag(mlflow_tags.MLFLOW_DATASET_CONTEXT, split)]))
    return inputs


def _dataset_source(record: RunRecord) -> tuple[str, dict[str, Any]]:
    """The source of the data in MLflow's form: an address, or the code that loads them."""
    urls = {name: one.url for name, one in record.sources.items()}
    if len(urls) == 1:
        (url,) = urls.values()
        return urlsplit(url).scheme or "local", {"uri": url}
    of_code = {"workload": record.config.workload, "settings": record.config.settings}
    return "code", of_code | ({"sources": urls} if urls else {})
