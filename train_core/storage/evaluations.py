"""The evaluations of a run: what measured checkpoints, as it lies in the run's folder."""

from __future__ import annotations

from train_core.errors import CheckpointError
from train_core.results import CheckpointSummary, EvaluationResult
from train_core.storage.records.manifest import EvaluationManifest
from train_core.storage.records.names import CHECKPOINTS, EVALUATIONS, CheckpointName
from train_core.storage.run_folder import RunFolder


def committed_evaluations(folder: RunFolder) -> list[EvaluationResult]:
    """All committed evaluations, also those of deleted checkpoints.

    In the order of their checkpoints; those of one checkpoint, oldest first.
    """
    names = sorted(filter(None, map(CheckpointName.parse, folder.store.names(EVALUATIONS))))
    found = []
    for name in names:
        of_one = list(folder.results(f"{EVALUATIONS}/{name}", EvaluationManifest))
        summary = _summary(folder, name) if of_one else None
        for key, manifest in sorted(of_one, key=lambda one: one[1].created_at):
            assert summary is not None
            found.append(
                EvaluationResult(
                    checkpoint=summary,
                    split=manifest.split,
                    uri=folder.store.uri(key),
                    num_samples=manifest.num_samples,
                    metrics=manifest.metrics,
                )
            )
    return found


def _summary(folder: RunFolder, name: CheckpointName) -> CheckpointSummary:
    """The checkpoint; of one that was deleted or damaged since, what its name says."""
    try:
        return folder.summary(folder.checkpoint(name))
    except (FileNotFoundError, CheckpointError):
        uri = folder.store.uri(f"{CHECKPOINTS}/{name}")
        return CheckpointSummary(name=str(name), uri=uri, step=name.step, epoch=0, metrics={})
