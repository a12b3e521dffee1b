"""What is laid under the flags of `retrain`: a file, and what a run was asked before."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import yaml

from flows.defaults import default_storage
from flows.parameters import last_asked
from train_core.errors import ConfigError
from train_core.storage.addresses import absolute
from train_core.storage.objects.retries import SHORT
from train_core.storage.run_folder import RunFolder


def read_configuration(path: str) -> dict[str, Any]:
    """The parameters in a YAML or JSON file. Raises ConfigError."""
    try:
        found = yaml.safe_load(Path(path).read_text())
    except (OSError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"configuration {path!r} cannot be read: {reason}. Give a YAML or JSON file"
        ) from error
    if not isinstance(found, dict):
        raise ConfigError(f"configuration {path!r} is not a mapping of parameters to values")
    return found


def configuration_of(arguments: list[str]) -> dict[str, dict[str, Any]]:
    """What is laid under the flags of `retrain` before anything is checked.

    Of a run that exists, what it was asked last; over it, what `--config` names.
    """
    if arguments[:1] != ["retrain"]:
        return {}
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for flag in ("--config", "--run", "--storage", "--num-workers"):
        parser.add_argument(flag)
    try:
        known, _ = parser.parse_known_args(arguments)
    except argparse.ArgumentError as error:
        raise ConfigError(str(error)) from error
    given = read_configuration(known.config) if known.config else {}
    flags = {name: value for name, value in vars(known).items() if value is not None}
    found = _of_run(given | flags) | given
    return {"retrain": found} if found else {}


def _of_run(asked: dict[str, Any]) -> dict[str, Any]:
    """What the run that is asked for was asked last, if there is one."""
    run, storage = asked.get("run"), asked.get("storage")
    # Values of a file may be anything; what is wrong with them is told when they are checked.
    if not isinstance(run, str) or not run or not isinstance(storage, str | None):
        return {}
    folder = RunFolder(absolute(storage) if storage else default_storage(), run)
    folder.store = folder.store.with_retries(SHORT)
    if not folder.exists():
        return {}
    found = last_asked(folder)
    # The run's own number of shards holds without being asked for.
    del found["num_shards"]
    if "num_workers" in asked:
        # One number is asked for, or both are.
        del found["min_workers"]
    return found
