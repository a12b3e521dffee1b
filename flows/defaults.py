"""Defaults of parameters that are not set: the storage and the address of MLflow."""

from __future__ import annotations

import os

from evertrain_flows.databases import SQLITE
from train_core.errors import ConfigError
from train_core.storage.addresses import absolute
from train_core.storage.run_folder import RunFolder

HOME = ".evertrain"


def default_storage() -> str:
    """EVERTRAIN_STORAGE, or .evertrain/runs in the current directory."""
    return absolute(os.environ.get("EVERTRAIN_STORAGE") or f"{HOME}/runs")


def default_tracking_uri() -> str:
    """MLFLOW_TRACKING_URI, or a SQLite file in .evertrain in the current directory.

    Raises ConfigError if that file has no address.
    """
    if named := os.environ.get("MLFLOW_TRACKING_URI"):
        return named
    path = absolute(f"{HOME}/mlflow.db")
    if taken := sorted(set("?#%") & set(path)):
        raise ConfigError(
            f"MLflow's database {path} has no address, as its folder has {' and '.join(taken)} in "
            "its name: rename the folder, or name MLflow's address with MLFLOW_TRACKING_URI or "
            "--tracking-uri"
        )
    return f"{SQLITE}{path}"


def tracking_uri_of(folder: RunFolder, requested: str | None) -> str:
    """MLflow's address: `requested`, else the run's own, else the environment's."""
    if requested is None:
        requested = folder.newest_request().requested.tracking_uri
    return default_tracking_uri() if requested is None else requested
