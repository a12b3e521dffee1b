"""Digests of what a training leaves: equal digests, equal bits."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import torch

from train_core.rank.checkpoint.packing import pack
from train_core.rank.checkpoint.reader import load_state
from train_core.storage.records.journal import read_segments
from train_core.storage.run_folder import RunFolder


def digest_of_training(folder: RunFolder) -> str:
    """Of all of the last checkpoint's state and of every metric of every step.

    Times and rates aside: they belong to the machine and the hour.
    """
    newest = max(folder.checkpoints(), key=lambda c: c.name)
    plain, tensors = pack(load_state(folder.store, newest))
    plain["progress"].pop("elapsed_s")
    sha = hashlib.sha256(json.dumps(plain, sort_keys=True).encode())
    for path, tensor in sorted(tensors.items()):
        sha.update(f"{path} {tensor.dtype} {tuple(tensor.shape)}".encode())
        sha.update(tensor.contiguous().flatten().view(torch.uint8).numpy())
    sha.update(json.dumps(journal_of(folder)).encode())
    return sha.hexdigest()


def journal_of(folder: RunFolder) -> list[Any]:
    """Every step's metrics, in order."""
    newest = max(folder.checkpoints(), key=lambda c: c.name)
    entries = read_segments(folder.store, newest.manifest.journal)
    return [[entry.step, entry.metrics] for entry in entries]
