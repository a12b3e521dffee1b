"""The predictions of a run: what batch inferences have committed into its folder."""

from __future__ import annotations

from collections.abc import Iterator

from train_core.results import CheckpointSummary, PredictionsResult
from train_core.storage.records.manifest import PredictionsManifest
from train_core.storage.records.names import CHECKPOINTS, PREDICTIONS
from train_core.storage.records.verified_files import read_file
from train_core.storage.run_folder import RunFolder


def result_of(
    folder: RunFolder, key: str, manifest: PredictionsManifest, checkpoint: CheckpointSummary
) -> PredictionsResult:
    """Where committed predictions are, and of what."""
    return PredictionsResult(
        checkpoint=checkpoint,
        uri=folder.store.uri(key),
        num_rows=manifest.num_rows,
        files=[folder.store.uri(f"{key}/{entry.name}") for entry in manifest.files],
        source=str(manifest.input.get("source", "")),
        input_digest=str(manifest.input.get("digest", "")),
        without_prediction=manifest.without_prediction,
    )


def committed_predictions(folder: RunFolder) -> list[PredictionsResult]:
    """All committed predictions of the run, oldest first."""
    found = folder.results(PREDICTIONS, PredictionsManifest)
    return [
        result_of(folder, key, manifest, _checkpoint(folder, manifest))
        for key, manifest in sorted(found, key=lambda one: one[1].created_at)
    ]


def verified_predictions(folder: RunFolder, result: PredictionsResult) -> Iterator[bytes]:
    """The files of committed predictions, in their order.

    Raises FileNotFoundError if they were deleted, CheckpointError if one was altered.
    """
    key = f"{PREDICTIONS}/{result.uri.rstrip('/').rpartition('/')[2]}"
    manifests = dict(folder.results(PREDICTIONS, PredictionsManifest))
    if key not in manifests:
        raise FileNotFoundError(f"there are no predictions at {result.uri}")
    for entry in manifests[key].files:
        yield bytes(read_file(folder.store, f"{key}/{entry.name}", entry))


def _checkpoint(folder: RunFolder, manifest: PredictionsManifest) -> CheckpointSummary:
    """The checkpoint that made them; of one that was deleted since, what its predictions tell."""
    try:
        return folder.summary(folder.find(manifest.checkpoint))
    except FileNotFoundError:
        uri = folder.store.uri(f"{CHECKPOINTS}/{manifest.checkpoint}")
        return CheckpointSummary(
            name=manifest.checkpoint, uri=uri, step=manifest.step, epoch=0, metrics={}
        )
