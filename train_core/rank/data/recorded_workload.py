"""The workload of a recorded run, with its recorded data and its settings with their defaults."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from train_core.config import FunctionTraining, TrainConfig
from train_core.datasets.recorded import RecordedData
from train_core.errors import HiddenLoginError, RunConflictError, WorkloadError
from train_core.loading import load_workload, parse_settings, workload_class
from train_core.policy.logins import has_hidden_login, hide_logins, with_login_of
from train_core.rank.data.fitted import state_of
from train_core.storage.records.data_files import FileList
from train_core.storage.records.run_record import Origin, RunRecord
from train_core.storage.run_folder import RunFolder
from train_core.storage.runs_of_storage import recorded_runs
from train_core.workload import Workload


def load_recorded(folder: RunFolder, config: TrainConfig) -> Workload[Any]:
    """The workload of a run. It reads the data that the run recorded, and no other.

    Before the run exists, it reads the data that are there. Raises WorkloadError if it cannot be
    loaded. A file whose login is not recorded raises HiddenLoginError when it is opened.
    """
    record = folder.record() if folder.exists() else None
    if record is None:
        return load_workload(config.workload, config.settings)
    fitted = folder.fitted_of(record)
    data = RecordedData(
        folder.name,
        record.datasets,
        folder.files_of(record),
        None if fitted is None else state_of(fitted),
    )
    return load_workload(config.workload, config.settings, data)


def with_defaults(config: TrainConfig) -> TrainConfig:
    """The configuration with its workload's settings and its monitor. Raises WorkloadError."""
    # A trainer may have an order, too; what nobody says is written out last.
    config = with_monitor(config)
    config = config.model_copy(update={"monitor_order": config.order})
    if not config.has_workload:
        return config
    settings = parse_settings(config.workload, config.settings).model_dump(mode="json")
    return config.model_copy(update={"settings": settings})


def with_monitor(config: TrainConfig) -> TrainConfig:
    """The configuration with its workload's monitor and its order, where it names none.

    Raises WorkloadError.
    """
    if isinstance(config.trainable, FunctionTraining):
        return config
    kind = workload_class(config.workload)
    monitor = config.monitor or kind.monitor
    usual = kind.monitor_order if monitor == kind.monitor else "max"
    found = {"monitor": monitor, "monitor_order": config.monitor_order or usual}
    return config.model_copy(update=found)


def with_known_defaults(config: TrainConfig) -> TrainConfig:
    """As `with_defaults`, but unchanged if the workload's code no longer accepts the settings."""
    try:
        return with_defaults(config)
    except WorkloadError:
        return config


def check_continuation(folder: RunFolder, asked: TrainConfig) -> None:
    """Raise RunConflictError if `asked` changes what may not change in the run.

    Settings are compared with their defaults: a run of an older evertrain recorded none.
    """
    was = folder.record().config
    if was.workload == asked.workload:
        was, asked = with_known_defaults(was), with_defaults(asked)
    if differences := was.without_logins().differences(asked.without_logins()):
        raise RunConflictError(folder.name, differences)


def newest_files(storage: str, workload: str) -> FileList | None:
    """The data files of the newest run of the workload in a storage that has recorded some.

    None if there is none. The list only saves hashing, so a list that cannot be read is ignored.
    """
    for folder, record in recorded_runs(storage):
        if record.files and record.config.workload == workload:
            with suppress(OSError, ValueError):
                return folder.files_of(record)
            break
    return None


def files_in_record(record: RunRecord, files: FileList | None) -> RunRecord:
    """The record, with a summary of the files that the workload names."""
    if files is None:
        return record
    sources = {name: one.summary() for name, one in files.sources.items()}
    return record.model_copy(update={"sources": sources, "files": files.entry()})


def check_settings(config: TrainConfig) -> None:
    """Raise HiddenLoginError if a setting is a URL whose login was removed for the record."""
    for name, value in config.settings.items():
        if has_hidden_login(value):
            raise HiddenLoginError(f"settings.{name} ({value})")


def without_login(origin: Origin) -> Origin:
    """The origin as it is recorded, without its login."""
    return origin.model_copy(update={"uri": hide_logins(origin.uri)})


def with_login(origin: Origin, config: TrainConfig, storage: str) -> Origin:
    """The recorded origin with its login, from `init_from` or from the storage of the runs.

    Raises HiddenLoginError if neither has.
    """
    uri = with_login_of(with_login_of(origin.uri, config.init_from), storage)
    if has_hidden_login(uri):
        raise HiddenLoginError(f"the URL of the first weights ({uri})")
    return origin.model_copy(update={"uri": uri})
