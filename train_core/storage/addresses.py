"""What people call a run or a checkpoint, and the run or checkpoint that is meant.

A run: its name in a storage, or its path or URL. A checkpoint: `<run>/<checkpoint>` or
`<run>/checkpoints/<checkpoint>`.
"""

from __future__ import annotations

import os

from train_core.errors import ConfigError
from train_core.storage.committed import scan
from train_core.storage.objects.storage_protocols import refuse_unserved
from train_core.storage.objects.store import DataStore, Store
from train_core.storage.records.names import CHECKPOINTS, CheckpointName
from train_core.storage.records.quarantine import quarantine_reason
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.run_reports import reported_best

_LONGEST_NAME = 100


def absolute(address: str) -> str:
    """A local path made absolute; a URL as it is. Raises ConfigError if no storage is at such."""
    _refuse_unusable(address)
    if "://" not in address:
        path = os.path.abspath(os.path.expanduser(address))
        if "::" in path:
            raise ConfigError(
                f"{path} has '::' in it, by which fsspec separates addresses: rename the folder, "
                "or name another one"
            )
        return path
    refuse_unserved(address)
    return address


def file_at(address: str) -> tuple[Store, str]:
    """The folder that the user's file at `address` is in, and the file's key in it."""
    folder, _, key = absolute(address).rpartition("/")
    return DataStore(folder or "/"), key


def run_at(url: str) -> RunFolder | None:
    """The run whose folder `url` is, or None."""
    folder = _folder_at(url)
    return folder if folder and folder.exists() else None


def find(what: str, storage: str) -> tuple[RunFolder, CheckpointName | None]:
    """The run, and the checkpoint if one is named. Raises ConfigError if there is none."""
    run, _, last = what.rstrip("/").rpartition("/")
    name = _checkpoint_name(last)
    run = run.removesuffix(f"/{CHECKPOINTS}") if name else what.rstrip("/")
    for folder in _folders(run, storage):
        if folder.exists() or (name and folder.exists_checkpoint(name)):
            return folder, name
    outer = run.rpartition("/")[0].removesuffix(f"/{CHECKPOINTS}")
    for folder in _folders(outer, storage) if name is None else ():
        if folder.exists():
            raise ConfigError(
                f"run {folder.name!r} has no checkpoint {last!r}: see `evertrain ls {folder.url}`"
            )
    raise ConfigError(
        f"there is no run {run!r}, neither as an address nor in {storage}: "
        "see `evertrain runs list`, with --trials for those of a search"
    )


def find_checkpoint(
    what: str, storage: str, *, prefer_best: bool = False
) -> tuple[RunFolder, Commit]:
    """The checkpoint that is named, or a run's newest; with `prefer_best` its report's best.

    Raises ConfigError if there is none, or if a newer evertrain committed the newest.
    """
    folder, name = find(what, storage)
    if name is not None:
        return folder, named(folder, name)
    text = reported_best(folder) if prefer_best else None
    if text and (best := _checkpoint_name(text)):
        return folder, named(folder, best)
    found = folder.scan()
    newest = found.newest
    newer = max(found.newer, default=None)
    if newer and (newest is None or newer > newest.name):
        older = f". To use an older one, name it: {folder.name}/{newest.name}" if newest else ""
        raise ConfigError(f"{found.newer[newer]}{older}")
    if newest is None:
        raise ConfigError(f"run {folder.name!r} has no checkpoint yet: see {folder.url}")
    return folder, newest


def named(folder: RunFolder, name: CheckpointName) -> Commit:
    """One checkpoint of the run. Raises ConfigError if it is not there, or is not to be used."""
    found = scan(folder.store, name)
    found.refuse_newer()
    for one in found.good:
        return one
    reason = found.damaged.get(name)
    if found.quarantined:
        reason = quarantine_reason(folder.store, name)
    raise ConfigError(
        f"run {folder.name!r} has no checkpoint {name}"
        f"{f' that is good: {reason}' if reason else ''}: see `evertrain ls {folder.url}`"
    )


def _refuse_unusable(address: str) -> None:
    """Raise ConfigError for characters that no path or URL has."""
    try:
        is_usable = b"\0" not in os.fsencode(address)
    except UnicodeEncodeError:
        is_usable = False
    if not is_usable:
        raise ConfigError(f"{address!r} is no address: it has characters that no path or URL has")


def _checkpoint_name(text: str) -> CheckpointName | None:
    """The name of a checkpoint, or None; Python refuses to read numbers of thousands of digits."""
    return CheckpointName.parse(text) if len(text) <= _LONGEST_NAME else None


def _folders(run: str, storage: str) -> list[RunFolder]:
    """Where a run of that name or address could be."""
    urls = (absolute(run), f"{storage.rstrip('/')}/{run}") if run else ()
    return [folder for folder in map(_folder_at, urls) if folder]


def _folder_at(url: str) -> RunFolder | None:
    try:
        return RunFolder.at(url)
    except ConfigError:
        return None
