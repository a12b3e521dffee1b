"""Defaults of `retrain`, over which flags win: of a `--config` file, then those of its run."""

from __future__ import annotations

import argparse
from typing import Any

from evertrain_flows.cli.configuration_file import read_configuration
from evertrain_flows.defaults import default_storage
from evertrain_flows.parameters import recorded_parameters
from train_core.errors import ConfigError
from train_core.storage.addresses import absolute
from train_core.storage.objects.retry_policy import SHORT
from train_core.storage.run_folder import RunFolder


def configuration_of(arguments: list[str]) -> dict[str, dict[str, Any]]:
    """The values below the flags of `retrain`, not validated yet.

    They are the recorded parameters of a run that exists, and over them those of `--config`.
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
    of_file = read_configuration(known.config) if known.config else {}
    flags = {name: value for name, value in vars(known).items() if value is not None}
    values = _of_run(of_file | flags) | of_file
    return {"retrain": values} if values else {}


def _of_run(values: dict[str, Any]) -> dict[str, Any]:
    """The recorded parameters of the run that the values name, if it exists."""
    run, storage = values.get("run"), values.get("storage")
    # A file may hold anything: the validation that follows reports what is wrong with it.
    if not isinstance(run, str) or not run or not isinstance(storage, str | None):
        return {}
    where = absolute(storage) if storage else default_storage()
    folder = RunFolder(where, run).with_retries(SHORT)
    if not folder.exists():
        return {}
    recorded = recorded_parameters(folder)
    # A run keeps its number of shards.
    del recorded["num_shards"]
    if "num_workers" in values:
        # A number of workers replaces the recorded minimum, too.
        del recorded["min_workers"]
    return recorded
