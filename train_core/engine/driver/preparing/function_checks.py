"""The checks before a training function is run: what cannot be done is refused in seconds."""

from __future__ import annotations

from train_core.config import LOCAL
from train_core.engine.cluster.resources import check_resources
from train_core.engine.data.recorded import check_continuation
from train_core.engine.driver.preparing.preflight import Checked
from train_core.engine.ray_train.origin import find_reported
from train_core.errors import ConfigError, HiddenLoginError
from train_core.policy.logins import has_hidden_login
from train_core.requests import DriverRequest, Prepared
from train_core.storage.objects.store import Store
from train_core.storage.records.names import check_new_run_name
from train_core.storage.run_checks import check_flow_run
from train_core.storage.run_folder import RunFolder


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
        check_flow_run(folder, request.flow_run)
        check_continuation(folder, config)
    else:
        check_new_run_name(folder.name)
    if config.ray_address == LOCAL:
        check_resources(config)
    origin = None
    if config.init_from:
        begun = folder.record().origin if resumed else None
        origin = begun or find_reported(config.init_from, request.storage)
    if not resumed:
        Store(request.storage).probe()
    prepared = Prepared(
        run=folder.name, url=folder.url, resumed=resumed, num_samples={}, total_steps=0
    )
    return Checked(prepared, {}, origin, None)
