"""Retention in a run folder: what rules, the report and pins keep. `delete_checkpoint` deletes."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from datetime import UTC, datetime

from train_core.policy.checkpoints.retention import (
    RetentionRules,
    RetentionVerdict,
    finalists,
    retention_verdicts,
)
from train_core.policy.checkpoints.selection import Candidate
from train_core.results import ModelVersion
from train_core.storage.coordination import pins
from train_core.storage.records.names import REPORT_JSON
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.run_reports import reported_best


def verdicts(
    folder: RunFolder,
    checkpoints: Collection[Commit],
    rules: RetentionRules,
    *,
    now: datetime,
    ignored_pins: Collection[str] = (),
    champions: Collection[ModelVersion] = (),
) -> list[RetentionVerdict]:
    """What is to become of the checkpoints, oldest first: by the rules, the report and the pins.

    `ignored_pins` are the keys of pins that need not be respected; `champions` are those of the
    run, which are pinned as well. Raises StorageError or CheckpointError where a reference cannot
    be read: then nothing may be deleted.
    """
    protected = defaultdict(list)
    for version in champions:
        protected[version.checkpoint].append(f"the champion {version.address}")
    if best := reported_best(folder):
        protected[best].append(f"the best of {REPORT_JSON}")
    for found in pins.valid_pins(folder.store):
        if found.key not in ignored_pins:
            protected[found.checkpoint].append(str(found))
    for one in checkpoints:
        if one.awaits_validation:
            protected[str(one.name)].append("it awaits its validation")
    candidates = [_candidate(one) for one in checkpoints]
    return retention_verdicts(candidates, rules, now=now, protected=protected)


def finalists_of(checkpoints: Collection[Commit], rules: RetentionRules) -> list[Commit]:
    """The finalists of those that were kept, oldest first."""
    named = {str(one.name): one for one in checkpoints}
    return [named[one.name] for one in finalists(map(_candidate, checkpoints), rules)]


def _candidate(checkpoint: Commit) -> Candidate:
    manifest = checkpoint.manifest
    return Candidate(
        str(checkpoint.name),
        checkpoint.step,
        # Metrics of another step rank nothing.
        {**manifest.metrics, **(checkpoint.validation or {})} if manifest.validated else {},
        _parse_time(manifest.created_at),
        manifest.scheduled,
    )


def _parse_time(text: str) -> datetime | None:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
