"""The data of a run, as a tracker shows them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from train_core.policy.logins import hide_secrets
from train_core.results import PredictionsResult
from train_core.storage.records.run_record import RunRecord
from train_core.tracking.tracker import Data


def data_of_splits(record: RunRecord) -> Sequence[Data]:
    """The splits of the run's data."""
    return [data_of_split(record, split) for split in record.datasets]


def data_of_split(record: RunRecord, split: str) -> Data:
    """A split of the run's data."""
    facts = record.datasets[split]
    source_type, source = _source(record)
    return Data(
        context=split,
        name=f"{_workload(record)}-{split}",
        # A digest is required. Where the data have none, the number of samples takes its place.
        digest=facts.get("digest") or f"{facts.get('samples')}-samples",
        source_type=source_type,
        source=hide_secrets(source),
        profile={"num_samples": facts.get("samples")},
    )


def data_of_predictions(record: RunRecord, result: PredictionsResult) -> Sequence[Data]:
    """The input of a batch inference; none if it has no digest."""
    if not result.input_digest:
        return []
    source_type = urlsplit(result.source).scheme or "local"
    name, source = f"{_workload(record)}-infer", hide_secrets({"uri": result.source})
    return [Data("infer", name, result.input_digest, source_type, source)]


def _workload(record: RunRecord) -> str:
    return record.config.workload.rpartition(":")[2]


def _source(record: RunRecord) -> tuple[str, dict[str, Any]]:
    """The source of the data: an address, or the code that loads them."""
    urls = {name: one.url for name, one in record.sources.items()}
    if len(urls) == 1:
        (url,) = urls.values()
        return urlsplit(url).scheme or "local", {"uri": url}
    of_code = {"workload": record.config.workload, "settings": record.config.settings}
    return "code", of_code | ({"sources": urls} if urls else {})
