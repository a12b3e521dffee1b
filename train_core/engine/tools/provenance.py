"""The version of the code that a run began with, so that a later run can detect a change."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from train_core.config import TrainConfig
from train_core.loading import load_function, workload_class
from train_core.storage.objects.digests import digest_of

_GIT_WITHIN_S = 5.0


def code_of(config: TrainConfig) -> dict[str, str]:
    """The version of the code that is trained with, for `code` of run.json.

    `evertrain` is evertrain's version, `workload` the BLAKE3 digest of the source file that has
    the workload or the training function, and `commit` that of the git repository which tracks
    this file. With a predictor, `predictor` is the digest of its file, and `data` that of the
    file with the workload that names the data. What cannot be known is left out.
    """
    found = {"evertrain": _version()}
    function = config.train_fn or config.trainer
    code = load_function(function) if function else workload_class(config.workload)
    source = _source_of(code)
    if source is not None:
        found["workload"] = digest_of(source.read_bytes())
        found["commit"] = _commit(source)
    if config.predictor:
        for name, scoring in (
            ("predictor", load_function(config.predictor)),
            ("data", workload_class(config.workload)),
        ):
            if source := _source_of(scoring):
                found[name] = digest_of(source.read_bytes())
    return {name: text for name, text in found.items() if text}


def _source_of(code: Any) -> Path | None:
    """The file that has the class or the function."""
    file = getattr(sys.modules.get(code.__module__), "__file__", None)
    return Path(file) if file and Path(file).is_file() else None


def _version() -> str:
    try:
        return metadata.version("evertrain")
    except metadata.PackageNotFoundError:
        return ""


def _commit(source: Path) -> str:
    """The commit of the repository that tracks the file; empty without one, or without git."""
    # An installed package often lies in somebody's repository without being a part of it.
    if _git(source.parent, "ls-files", "--error-unmatch", "--", source.name) is None:
        return ""
    return _git(source.parent, "rev-parse", "HEAD") or ""


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints; None if it fails, is not there or takes too long."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=_GIT_WITHIN_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def fingerprint(config: TrainConfig) -> dict[str, str]:
    """What the bits of the numbers depend on beside the configuration."""
    found = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "machine": platform.machine(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "device": _device_name(config),
        "threads_per_worker": str(config.threads_per_worker),
    }
    if config.strategy == "fsdp":
        # Gradients are added up over ranks, not in the tree of shards.
        found["num_workers"] = str(config.num_workers)
    return found


def _device_name(config: TrainConfig) -> str:
    if not config.uses_gpu:
        return "cpu"
    # The driver of a cluster need not have the GPU that its workers have.
    return torch.cuda.get_device_name() if torch.cuda.is_available() else "cuda"
