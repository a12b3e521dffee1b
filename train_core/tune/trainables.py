"""`trainable`: what a `tune.Tuner` searches with."""

from __future__ import annotations

import os
from typing import Any

from pydantic import ValidationError

from train_core.errors import ConfigError
from train_core.requests import DEFAULT_EXPERIMENT
from train_core.storage.addresses import absolute
from train_core.text.shown_text import without_secrets
from train_core.tune.parameters import of_trial
from train_core.tune.trial import Trial

_HOME = ".evertrain/runs"


def trainable(
    workload: str = "",
    *,
    storage: str | None = None,
    tracking_uri: str = "",
    experiment: str = DEFAULT_EXPERIMENT,
    **parameters: Any,
) -> type[Trial]:
    """A trainable for `tune.Tuner`: each of its trials is a run, on Tune's own Ray.

    `workload` is named as `package.module:Name`; `train_fn` or `trainer` among the `parameters`
    take its place. The parameters are those of `TrainConfig`, for all trials; `param_space` has
    those that a trial draws, as `settings.learning_rate`, and may have any of them.

    The runs are in `storage`, which is EVERTRAIN_STORAGE or .evertrain/runs by default; with a
    `tracking_uri`, they are mirrored to MLflow. Raises ConfigError for a parameter that is unknown
    or has a wrong value, and for a storage with a password; a wrong value of `param_space` ends
    each trial that has it.

    >>> from ray import tune
    >>> from train_core.tune import trainable
    >>> tuner = tune.Tuner(
    ...     trainable("my:Workload", epochs=12),
    ...     param_space={"settings.learning_rate": tune.loguniform(1e-4, 1e-1)},
    ... )  # doctest: +SKIP
    """
    asked = {**({"workload": workload} if workload else {}), **parameters}
    named = [name for name in ("workload", "train_fn", "trainer") if asked.get(name)]
    if not named:
        raise ConfigError(
            "trainable() has nothing to train: name a workload, as package.module:Name, or give "
            "train_fn or trainer"
        )
    place = absolute(storage or os.environ.get("EVERTRAIN_STORAGE") or _HOME)
    if without_secrets(place) != place:
        raise ConfigError(
            "storage: an address with a password would be among Tune's results: leave it out, and "
            "give the storage's client its credentials in the environment"
        )
    try:
        of_trial(asked, {})
    except ConfigError as error:
        cause = error.__cause__
        # What is wrong with several of them together, at no place, may be right with what a trial
        # adds; but nothing that it adds makes one of two that are to be trained.
        is_of_several = isinstance(cause, ValidationError) and not cause.errors()[0]["loc"]
        if len(named) > 1 or not is_of_several:
            raise
    name = str(asked[named[-1]]).rpartition(":")[2]
    return type(
        name,
        (Trial,),
        {
            "__doc__": f"Trials of {asked[named[-1]]}.",
            "asked": asked,
            "storage": place,
            "tracking_uri": tracking_uri,
            "experiment": experiment,
        },
    )
