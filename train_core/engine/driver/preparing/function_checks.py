"""The checks before a training function is run: what cannot be done is refused in seconds."""

from __future__ import annotations

from train_core.config import LOCAL
from train_core.datasets.protocols import Dataset, Split, Stream
from train_core.engine.cluster.resources import check_resources
from train_core.engine.data.inputs import open_input
from train_core.engine.data.recorded import (
    check_settings,
    load_recorded,
    newest_files,
)
from train_core.engine.driver.preparing.preflight import Checked, check_request_continues
from train_core.engine.metrics.measure import check_split
from train_core.engine.ray_train.origin import find_reported
from train_core.errors import ConfigError, HiddenLoginError
from train_core.loading import load_function
from train_core.policy.logins import has_hidden_login
from train_core.requests import DriverRequest, Prepared
from train_core.storage.objects.store import Store
from train_core.storage.records.names import check_new_run_name
from train_core.storage.run_folder import RunFolder
from train_core.workload import indexed, pinned_files

_SCORED: tuple[Split, ...] = ("validation", "test")


def check_function(folder: RunFolder, request: DriverRequest) -> Checked:
    """Check all that can be checked without compute; writes nothing that stays.

    Raises ConfigError for what is wrong.
    """
    config, resumed = request.config, folder.exists()
    for name in ("dry_run", "skip_unchanged"):
        if getattr(request, name):
            raise ConfigError(
                f"{name} needs a workload: evertrain does not know the steps and the data of the "
                f"training function {config.workload}"
            )
    for name, value in config.train_loop_config.items():
        if has_hidden_login(value):
            raise HiddenLoginError(f"train_loop_config.{name} ({value})")
    if resumed:
        check_request_continues(folder, request)
    else:
        check_new_run_name(folder.name)
    if config.ray_address == LOCAL:
        check_resources(config)
    origin = None
    if config.init_from:
        begun = folder.record().origin if resumed else None
        origin = begun or find_reported(config.init_from, request.storage)
    datasets: dict[str, Dataset | Stream] = {}
    files = None
    if config.predictor:
        load_function(config.predictor)
        check_settings(config)
        workload = load_recorded(folder, config)
        names_files = not resumed and workload.sources()
        earlier = newest_files(request.storage, config.workload) if names_files else None
        files = pinned_files(workload, earlier)
        datasets = {split: indexed(workload, split) for split in _SCORED}
        if source := request.pipeline.infer_input:
            open_input(source, workload)
    if not resumed:
        Store(request.storage).probe()
    prepared = Prepared(
        run=folder.name,
        url=folder.url,
        resumed=resumed,
        num_samples={split: check_split(dataset, split) for split, dataset in datasets.items()},
        total_steps=0,
    )
    return Checked(prepared, datasets, origin, files)
