"""A checkpoint's weights as one file of their own."""

from __future__ import annotations

import safetensors.torch

from train_core.rank.checkpoint.reader import read_model
from train_core.results import ExportResult
from train_core.storage.objects.digest_algorithm import digest_of
from train_core.storage.objects.store import Store
from train_core.storage.run_folder import Commit, RunFolder


def export_weights(folder: RunFolder, checkpoint: Commit, store: Store, key: str) -> ExportResult:
    """Write the verified weights of a run's checkpoint to the file `key` of the store.

    Raises CheckpointError if the checkpoint is not good, and StorageError.
    """
    weights, metadata = read_model(folder.store, checkpoint).tensors()
    data = safetensors.torch.save(weights, metadata)
    store.write(key, data, durable=True)
    return ExportResult(
        checkpoint=folder.store.uri(checkpoint.key),
        uri=store.uri(key),
        size_bytes=len(data),
        digest=digest_of(data),
        num_tensors=len(weights),
    )
