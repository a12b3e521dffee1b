"""The version of the code that a run began with, so that a later run can detect a change."""

from __future__ import annotations

import platform
import subprocess
import sys
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch

from train_core.config import TrainConfig
from train_core.loading import load_function, workload_class
from train_core.own_code import own_code_of, owners_of, versions_of
from train_core.storage.objects.digest_algorithm import digest_of

_GIT_WITHIN_S = 5.0


@dataclass(frozen=True)
class RecordedCode:
    """The version of all code that a run was begun with."""

    code: dict[str, str]
    """evertrain's version, and the commit of the git repository that tracks the workload's file."""
    modules: dict[str, str]
    """The BLAKE3 digest of each of the user's own modules."""
    packages: dict[str, str]
    """The versions of the installed distributions that these import, and of what those require."""


def code_of(config: TrainConfig) -> RecordedCode:
    """The version of the code that is trained and scored with, for run.json.

    What cannot be known is left out.
    """
    function = config.train_fn or config.trainer
    main = load_function(function) if function else workload_class(config.workload)
    named = [function or config.workload]
    if config.predictor:
        load_function(config.predictor)
        workload_class(config.workload)
        named += [config.predictor, config.workload]
    found = own_code_of(named)
    source = _source_of(main)
    code = {"evertrain": _version(), "commit": _commit(source) if source else ""}
    return RecordedCode(
        code={name: text for name, text in code.items() if text},
        modules={name: digest_of(found.modules[name]) for name in sorted(found.modules)},
        packages=versions_of(owners_of(found.installed)),
    )


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
