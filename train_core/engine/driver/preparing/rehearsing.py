"""The rehearsal of a run that begins, if none of the same code, settings and versions passed."""

from __future__ import annotations

import json
import logging
from functools import partial

from train_core.config import TrainConfig
from train_core.datasets.protocols import is_stream
from train_core.engine.driver.preparing.preflight import Checked
from train_core.engine.rehearsal.rehearse import rehearse
from train_core.errors import WorkloadError
from train_core.loading import load_workload
from train_core.results import Finding, Rehearsal
from train_core.storage.objects.digests import digest_of
from train_core.storage.records.run_record import RunRecord
from train_core.storage.runs_of_storage import recorded_runs

_log = logging.getLogger(__name__)


def rehearsed(storage: str, record: RunRecord, config: TrainConfig, checked: Checked) -> RunRecord:
    """The record of a run that begins, with what it was rehearsed with.

    Raises WorkloadError for what the rehearsal refuses, unless the configuration accepts it, and
    what the workload's code raises.
    """
    digest = _digest(record, config)
    if digest not in _passed(storage, config.workload):
        train_set, validation_set = checked.datasets["train"], checked.datasets["validation"]
        assert not is_stream(validation_set), "the preflight refuses one"
        new_workload = partial(load_workload, config.workload, config.settings)
        found = rehearse(new_workload, config, train_set, validation_set)
        tell(found, config)
    return record.model_copy(update={"rehearsed": digest})


def tell(found: Rehearsal, config: TrainConfig) -> None:
    """Log what was found. Raises WorkloadError for what is refused and not accepted."""
    _log.info("rehearsed %s in %.1f s", ", ".join(found.tried) or "nothing", found.cpu_s)
    for line in found.left_out:
        _log.info("not rehearsed: %s", line)
    refused = [one for one in found.findings if one.is_refused and one.name not in config.accept]
    for one in found.findings:
        if one not in refused and one.name not in config.accept:
            _log.warning("%s", shown(one))
    if refused:
        raise WorkloadError("; ".join(map(shown, refused)))


def shown(finding: Finding) -> str:
    """The finding in one line, with the flag that accepts it."""
    then = "to train all the same" if finding.is_refused else "to hear no more of it"
    return f"{finding.message} (rehearsal; {then}: --accept {finding.name})"


def _passed(storage: str, workload: str) -> set[str]:
    """With what the runs of a workload in a storage were rehearsed."""
    return {
        record.rehearsed
        for _, record in recorded_runs(storage)
        if record.config.workload == workload and record.rehearsed
    }


def _digest(record: RunRecord, config: TrainConfig) -> str:
    """Of all that the rehearsal's outcome depends on but the data."""
    facts = {
        "settings": record.config.settings,
        "config": config.deciding(),
        "has_shards": config.shards > 1,
        "code": record.code,
        "modules": record.modules,
        "packages": record.packages,
        "fingerprint": record.fingerprint,
    }
    return digest_of(json.dumps(facts, sort_keys=True, default=str).encode())
