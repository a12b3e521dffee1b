"""What is checked before a run folder is created, deleted, or continued by another flow run."""

from __future__ import annotations

import os

from train_core.errors import ConfigError
from train_core.storage.records.names import CHECKPOINTS, RUN_JSON
from train_core.storage.run_folder import RunFolder


def check_leftovers(folder: RunFolder) -> None:
    """Raise ConfigError if checkpoints lie where there is no run: a new run would own them."""
    if not folder.exists() and folder.store.names(CHECKPOINTS):
        raise ConfigError(
            f"{folder.url} has checkpoints and no {RUN_JSON}: they are remains of a run that was "
            "deleted, or of a fork that was killed. Delete the folder, or take another name"
        )


def check_no_link(folder: RunFolder) -> None:
    """Raise ConfigError if the run folder itself is a link: nothing is deleted through one."""
    if folder.store.is_local and os.path.islink(folder.url):
        raise ConfigError(
            f"{folder.url} is a link to {os.path.realpath(folder.url)}, and nothing is deleted "
            "through a link: name that folder"
        )


def check_flow_run(folder: RunFolder, flow_run: str) -> None:
    """Raise ConfigError if the run was named after another flow run than `flow_run`.

    With an empty `flow_run` the user named the run, and it is continued whatever it was named
    after.
    """
    if not flow_run:
        return
    owner = folder.record().flow_run
    if owner != flow_run:
        begun = f"was begun by flow run {owner}" if owner else "was not begun by a flow run"
        raise ConfigError(
            f"run {folder.name!r} {begun}, and flow run {flow_run} would be named the same: "
            "give its run another name with the parameter `run`"
        )
