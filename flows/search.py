"""`retrain_best`: the best trial of a search goes on as a pipeline."""

from __future__ import annotations

from typing import Any, Protocol

from prefect import State

from evertrain_flows.defaults import default_storage
from evertrain_flows.parameters import RetrainParameters, recorded_parameters
from evertrain_flows.retrain import retrain
from train_core.client.run_summaries import list_runs
from train_core.errors import ConfigError
from train_core.results import Report
from train_core.storage.addresses import absolute
from train_core.storage.run_folder import RunFolder

_RUN = "evertrain/run"
"""The result of a trial that is the address of its run."""
_DONE = "done"
"""Whether Tune has ended the trial, by what it gave, a scheduler or a stop criterion."""


class Results(Protocol):
    """The results of a search, as a `ray.tune.ResultGrid` has them."""

    def get_best_result(self, metric: str | None = None, mode: str | None = None) -> Any:
        """The best trial's."""

    def __len__(self) -> int:
        """How many trials there are."""

    def __getitem__(self, number: int) -> Any:
        """A trial's."""


def retrain_best(
    search: Results | str,
    *,
    metric: str | None = None,
    mode: str | None = None,
    storage: str | None = None,
    **parameters: Any,
) -> Report | State[Report]:
    """Have the best trial of a search go on as a pipeline: evaluate, test, infer, gate, publish.

    `search` is what `Tuner.fit` returned, whose `metric` and `mode` are the defaults; or the name
    of a search in `storage`, whose best run by its monitored metric is meant. A trial that the
    scheduler has stopped is trained to its end first. `parameters` are those of the retrain flow
    that may change in a run, as `infer_input`, `registered_model` or `gate`.

    Raises ConfigError if there is no such search, or no trial of it that was measured, if the
    results are those of a search that ended before its trials, and as the retrain flow.

    >>> retrain_best(tuner.fit(), infer_input="s3://bucket/new")  # doctest: +SKIP
    """
    if isinstance(search, str):
        if metric or mode:
            raise ConfigError(
                "metric and mode are for results of Tune's: of a search that is named, the best "
                "run is that with the best value of its monitored metric"
            )
        folder = _best_of(search, absolute(storage) if storage else default_storage())
    else:
        try:
            best = search.get_best_result(metric, mode)
        except RuntimeError as error:
            # As Tune says it where no trial has a value.
            raise ConfigError(f"the search has no best trial: {error}") from error
        if _RUN not in (best.metrics or {}):
            raise ConfigError(
                f"the best trial has no {_RUN} among its results: it is none of "
                "train_core.tune.trainable's, or has reported nothing"
            )
        folder = RunFolder.at(best.metrics[_RUN])
        _check_ended(search, folder)
    asked = recorded_parameters(folder)
    # A trial asks for no gate, so that nothing is recorded of one.
    asked.pop("gate", None)
    return retrain(RetrainParameters.of(**{**asked, **parameters}))


def _check_ended(search: Results, best: RunFolder) -> None:
    """Raise ConfigError if trials were under way when the search ended, as by Ctrl-C.

    Tune returns results then, too, and the program goes on to `retrain_best`.
    """
    results = [search[number] for number in range(len(search))]
    under_way = [one for one in results if one.error is None and not (one.metrics or {}).get(_DONE)]
    if under_way:
        name = best.record().search
        raise ConfigError(
            f"{len(under_way)} of {len(results)} trials were under way when the search ended, as "
            "by Ctrl-C or time_budget_s, or were paused when they were stopped: Tuner.restore goes "
            "on with those that were under way, and "
            f"retrain_best({name.search if name else best.name!r}, storage={best.storage!r}) takes "
            "the best run there is"
        )


def _best_of(search: str, storage: str) -> RunFolder:
    runs = [one for one in list_runs(storage) if one.search == search]
    if not runs:
        raise ConfigError(
            f"there is no search {search!r} in {storage}: `evertrain runs list` shows those that "
            "there are"
        )
    measured = [(one.best, one) for one in runs if one.best is not None]
    if not measured:
        raise ConfigError(f"no trial of search {search!r} has a value of its monitored metric yet")
    choose = min if runs[0].order == "min" else max
    _, best = choose(measured, key=lambda pair: pair[0])
    return RunFolder(storage, best.run)
