"""A checkpoint's weights as one file of their own."""

from __future__ import annotations

import safetensors.torch

from train_core.engine.checkpoint.reader import read_model
from train_core.results import ExportResult
from train_core.storage.addresses import file_at
from train_core.storage.objects.digests import digest_of
from train_core.storage.run_folder import RunFolder


def export_weights(run_url: str, checkpoint: str, address: str) -> ExportResult:
    """Write the verified weights of a checkpoint of the run at `run_url` to the file at `address`.

    Raises CheckpointError if the checkpoint is not good, and StorageError.
    """
    folder = RunFolder.at(run_url)
    found = folder.find(checkpoint)
    weights, metadata = read_model(folder.store, found).tensors()
    data = safetensors.torch.save(weights, metadata)
    store, key = file_at(address)
    store.write(key, data, durable=True)
    return ExportResult(
        checkpoint=folder.store.uri(found.key),
        uri=store.uri(key),
        size_bytes=len(data),
        digest=digest_of(data),
        num_tensors=len(weights),
    )
