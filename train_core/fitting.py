"""`fit`: train a workload, from a program of one's own and without Prefect."""

from __future__ import annotations

from collections.abc import Callable

from train_core.client.driver import Driver
from train_core.config import TrainConfig
from train_core.requests import DriverRequest
from train_core.results import TrainResult


def fit(
    config: TrainConfig,
    *,
    storage: str,
    run: str,
    tracking_uri: str = "",
    on_log: Callable[[str], None] | None = print,
) -> TrainResult:
    """Train on Ray, in a driver process of its own, and give the outcome.

    `storage` is any fsspec URL; `<storage>/<run>` becomes the run folder. A run that exists is
    continued after its newest good checkpoint, and one that is finished is returned as it is.
    With a `tracking_uri`, MLflow mirrors it.

    Raises ConfigError before any compute if what was asked cannot be done, RunBusyError if
    another process drives the run, NotFiniteError if the loss became NaN, and StageError with
    the traceback of the first rank that failed.

    >>> from train_core import TrainConfig, fit
    >>> fit(TrainConfig(epochs=2, num_workers=2), storage="runs", run="digits")  # doctest: +SKIP
    """
    request = DriverRequest(storage=storage, run=run, config=config, tracking_uri=tracking_uri)
    with Driver(request, on_log) as driver:
        driver.prepared()
        return driver.train()
