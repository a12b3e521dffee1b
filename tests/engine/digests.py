"""Digests of what a training leaves: equal digests, equal bits."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from train_core.engine.checkpoint_files import read_verified
from train_core.storage.journal import read_segments
from train_core.storage.run_folder import RunFolder


def digest_of_training(folder: RunFolder) -> str:
    """Of the last checkpoint's every file and of every metric of every step.

    Times and rates aside: they belong to the machine and the hour.
    """
    newest = max(folder.checkpoints(), key=lambda c: c.name)
    files = read_verified(folder.store, newest.key, newest.manifest.files)
    state = json.loads(files.pop("state.json"))
    state["progress"].pop("elapsed_s")
    sha = hashlib.sha256(json.dumps(state, sort_keys=True).encode())
    for name, data in sorted(files.items()):
        sha.update(name.encode() + data)
    sha.update(json.dumps(journal_of(folder)).encode())
    return sha.hexdigest()


def journal_of(folder: RunFolder) -> list[Any]:
    """Every step's metrics, in order."""
    newest = max(folder.checkpoints(), key=lambda c: c.name)
    entries = read_segments(folder.store, newest.manifest.journal)
    return [[entry.step, entry.metrics] for entry in entries]
