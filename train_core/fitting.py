"""`fit` and `extend_run`: train a workload from a program, without Prefect."""

from __future__ import annotations

from collections.abc import Callable

from train_core.client.driver_handle import Driver
from train_core.client.run import Run, folder_of
from train_core.client.runs import epochs_after
from train_core.config import TrainConfig
from train_core.errors import StageError
from train_core.policy.metric_names import is_validation
from train_core.requests import DriverRequest
from train_core.results import Reported, TrainResult
from train_core.stages import REPORTS, TRAIN
from train_core.storage.records.journal import read_segments
from train_core.storage.run_folder import RunFolder

_WAIT_S = 20.0
"""How long a question for reports waits at most: it is asked again."""


def fit(
    config: TrainConfig,
    *,
    storage: str,
    run: str,
    tracking_uri: str = "",
    on_log: Callable[[str], None] | None = print,
    on_report: Callable[[Reported], None] | None = None,
) -> TrainResult:
    """Train on Ray, in a driver process of its own, and return the result.

    `storage` is any fsspec URL; `<storage>/<run>` becomes the run folder. A run that exists is
    continued after its newest good checkpoint, and one that is finished is returned as it is.
    With a `tracking_uri`, the run is mirrored to MLflow.

    `on_report` is called with each validation of a workload, and each report of a training
    function, once it is committed: each once and in order, also where a process dies and the
    training goes on. It is called from this thread, which the training does not wait for; an error
    that it raises ends the training, which is saved, and is raised here.

    Raises ConfigError before any compute if the request cannot be carried out, RunBusyError if
    another process drives the run, NotFiniteError if the loss became NaN, and StageError with
    the traceback of the first rank that failed.

    >>> from train_core import TrainConfig, fit
    >>> fit(TrainConfig(epochs=2, num_workers=2), storage="runs", run="digits")  # doctest: +SKIP
    """
    request = DriverRequest(storage=storage, run=run, config=config, tracking_uri=tracking_uri)
    with Driver.start(request, on_log) as driver:
        driver.prepared()
        if on_report is None:
            return driver.ask(TRAIN, TRAIN.arguments())
        return train_and_follow(driver, on_report, after=reported_before(request))


def train_and_follow(
    driver: Driver, on_report: Callable[[Reported], None], *, after: int
) -> TrainResult:
    """Train, and call `on_report` with each report after that step. Raises as `fit`."""
    training = driver.begin(TRAIN, TRAIN.arguments())
    while True:
        # Before the reports are asked for: the last one is among them.
        has_ended = training.done()
        asked = REPORTS.arguments(after=after, wait_s=0 if has_ended else _WAIT_S)
        try:
            found = driver.ask(REPORTS, asked).reports
        except StageError:
            if not driver.is_alive:
                # The training says so, too.
                return training.result()
            raise
        for one in found:
            on_report(one)
            after = one.step
        if has_ended and not found:
            return training.result()


def reported_before(request: DriverRequest) -> int:
    """The step from which on the training reports what was not reported before; 0: all of it."""
    folder = RunFolder(request.storage, request.run)
    is_function = not request.config.trainable.uses_pool
    lasting = [one for one in folder.checkpoints() if not one.manifest.reports_again]
    # IMPORTANT: a checkpoint may have been saved before the validation of its step.
    entries = read_segments(folder.store, lasting[-1].manifest.journal if lasting else ())
    reports = (one.step for one in entries if is_function or is_validation(one.metrics))
    return max(reports, default=0)


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
