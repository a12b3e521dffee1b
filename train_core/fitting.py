"""`fit` and `extend_run`: train a workload from a program, without Prefect."""

from __future__ import annotations

from collections.abc import Callable

from train_core.client.driver_handle import Driver
from train_core.client.run import Run, folder_of
from train_core.client.runs import epochs_after
from train_core.config import TrainConfig
from train_core.requests import DriverRequest
from train_core.results import TrainResult
from train_core.stages import TRAIN
from train_core.storage.run_folder import RunFolder


def fit(
    config: TrainConfig,
    *,
    storage: str,
    run: str,
    tracking_uri: str = "",
    on_log: Callable[[str], None] | None = print,
) -> TrainResult:
    """Train on Ray, in a driver process of its own, and return the result.

    `storage` is any fsspec URL; `<storage>/<run>` becomes the run folder. A run that exists is
    continued after its newest good checkpoint, and one that is finished is returned as it is.
    With a `tracking_uri`, the run is mirrored to MLflow.

    Raises ConfigError before any compute if the request cannot be carried out, RunBusyError if
    another process drives the run, NotFiniteError if the loss became NaN, and StageError with
    the traceback of the first rank that failed.

    >>> from train_core import TrainConfig, fit
    >>> fit(TrainConfig(epochs=2, num_workers=2), storage="runs", run="digits")  # doctest: +SKIP
    """
    request = DriverRequest(storage=storage, run=run, config=config, tracking_uri=tracking_uri)
    with Driver.start(request, on_log) as driver:
        driver.prepared()
        return driver.ask(TRAIN, TRAIN.arguments())


def extend_run(
    run: Run | RunFolder,
    epochs: str,
    *,
    tracking_uri: str = "",
    on_log: Callable[[str], None] | None = print,
) -> TrainResult:
    """Train a run for more epochs and return the result.

    `epochs` is their number in all, as `"20"`, or how many more, as `"+5"`. All else is as the run
    was last asked for. Raises ConfigError if the run has as many epochs already, and as `fit` does.

    >>> from train_core import extend_run, open_run
    >>> extend_run(open_run("runs/digits"), "+5")  # doctest: +SKIP
    """
    folder = folder_of(run)
    config = folder.newest_request().config
    longer = config.model_copy(update={"epochs": epochs_after(folder, epochs)})
    return fit(
        longer, storage=folder.storage, run=folder.name, tracking_uri=tracking_uri, on_log=on_log
    )
