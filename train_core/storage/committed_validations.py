"""What validation functions have measured, as it lies in the folder of a training function."""

from __future__ import annotations

from train_core.results import CheckpointSummary, EvaluationResult
from train_core.storage.records.manifest import EvaluationManifest
from train_core.storage.records.names import CHECKPOINTS, EVALUATIONS, CheckpointName
from train_core.storage.run_folder import RunFolder


def committed_validations(folder: RunFolder) -> list[EvaluationResult]:
    """All of a training function's evaluations, also those of deleted checkpoints, in their order.

    A workload's are among the results of its own stage.
    """
    names = sorted(filter(None, map(CheckpointName.parse, folder.store.names(EVALUATIONS))))
    return [
        EvaluationResult(
            checkpoint=_summary(folder, name),
            split=manifest.split,
            uri=folder.store.uri(key),
            num_samples=manifest.num_samples,
            metrics=manifest.metrics,
        )
        for name in names
        for key, manifest in folder.results(f"{EVALUATIONS}/{name}", EvaluationManifest)
    ]


def _summary(folder: RunFolder, name: CheckpointName) -> CheckpointSummary:
    """The checkpoint; of one that was deleted since, what its name says."""
    try:
        return folder.summary(folder.checkpoint(name))
    except FileNotFoundError:
        uri = folder.store.uri(f"{CHECKPOINTS}/{name}")
        return CheckpointSummary(name=str(name), uri=uri, step=name.step, epoch=0, metrics={})
