"""Searches by Ray Tune, each of whose trials is a run of evertrain's: docs/search.md.

The one room that imports Ray Tune. No module imports this one.

trainables      `trainable`: what a `tune.Tuner` is given
trial           a trial in its process: what Tune calls, and what it gets
trial_training  the driver of a trial's run: started, followed report by report, and ended
generations     which run a trial begins or goes on with
references      what a checkpoint of Tune's names: a run, and a checkpoint of it
parameters      the parameters of a trial's run, out of those of the search and the trial's own
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from train_core.tune.references import TuneCheckpoint
    from train_core.tune.trainables import trainable

__all__ = ["TuneCheckpoint", "trainable"]

_HOMES = {
    "TuneCheckpoint": "train_core.tune.references",
    "trainable": "train_core.tune.trainables",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOMES:
        raise AttributeError(f"module 'train_core.tune' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
