"""Which run a trial begins, or goes on with.

A trial may have several runs, one after the other: where a scheduler has it go on with another
trial's weights, or other parameters, another run begins. All is found from the storage, so a trial
that is tried again, after any end of any process, finds the run that it was at.
"""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from train_core.config import TrainConfig
from train_core.errors import ConfigError
from train_core.requests import SearchTrial
from train_core.storage.run_folder import RunFolder
from train_core.tune.references import TuneCheckpoint

_MOST_CHARS = 90
_PREFIXED = re.compile(r"([0-9a-f]{4,8})_\d{5}")
"""The id of a trial whose search gives all of its trials one beginning."""


@dataclass(frozen=True)
class Generation:
    """A run of a trial."""

    run: str
    config: TrainConfig
    search: SearchTrial
    after: int
    """The step of the last report that Tune has of it."""


def search_name(experiment: str, trial: str) -> str:
    """What the search is called: as Tune's experiment.

    Two searches may share a folder of Tune's; where the trials' ids say so, they are told apart.
    """
    name = re.sub(r"[^A-Za-z0-9._-]+|\.\.+", "-", experiment).strip("-._")[:_MOST_CHARS] or "search"
    found = _PREFIXED.fullmatch(trial)
    return f"{name}-{found[1]}" if found and not name.endswith(found[1]) else name


def run_name(experiment: str, trial: str, generation: int) -> str:
    """The name of a trial's run."""
    search, found = search_name(experiment, trial), _PREFIXED.fullmatch(trial)
    end = trial.rpartition("_")[2] if found else re.sub(r"[^A-Za-z0-9]+", "-", trial)
    more = f"-g{generation}" if generation > 1 else ""
    return f"{search}-{end}{more}"


def choose(
    storage: str,
    experiment: str,
    trial: str,
    asked: TrainConfig,
    reference: TuneCheckpoint | None,
) -> Generation:
    """The run that the trial is at with these parameters, from that checkpoint of Tune's.

    Raises ConfigError if the checkpoint is deleted, or if a run is to begin with weights that were
    not reported yet, and CheckpointError if it is another one.
    """
    digest = _digest(asked)
    known = _existing(storage, experiment, trial)
    for folder, search in reversed(known):
        is_own = reference is not None and reference.run == folder.url
        is_begun_so = reference is None or bool(
            reference.digest and reference.digest == search.begins_with
        )
        if search.asked == digest and (is_own or is_begun_so):
            record = folder.record()
            config = _continued(asked, search, record.config.init_from)
            after = reference.step if reference and is_own else 0
            return Generation(folder.name, config, search, after)
    if reference is not None and not reference.name:
        raise ConfigError(
            f"trial {trial} is to begin a run as trial {reference.trial}, which has no checkpoint "
            "yet: let a scheduler copy trials no sooner than they have one "
            "(perturbation_interval), or report one with each report, or validate and save in the "
            "same epochs"
        )
    search = SearchTrial(
        search=search_name(experiment, trial),
        trial=trial,
        generation=len(known) + 1,
        asked=digest,
        begins_with=reference.digest if reference else "",
        epochs_before=reference.epochs if reference else 0,
        steps_before=reference.steps if reference else 0,
    )
    origin = reference.checkpoint().uri if reference else ""
    config = _continued(asked, search, origin)
    name = run_name(experiment, trial, search.generation)
    return Generation(name, config, search, after=0)


def _existing(storage: str, experiment: str, trial: str) -> list[tuple[RunFolder, SearchTrial]]:
    """The trial's runs, oldest first."""
    found: list[tuple[RunFolder, SearchTrial]] = []
    while True:
        folder = RunFolder(storage, run_name(experiment, trial, len(found) + 1))
        search = folder.record().search if folder.exists() else None
        if search is None:
            return found
        found.append((folder, search))


def _continued(asked: TrainConfig, search: SearchTrial, init_from: str) -> TrainConfig:
    """The parameters of a run that goes on with a trial's weights: it trains what is left."""
    if not search.begins_with:
        return asked
    changed: dict[str, Any] = {"init_from": init_from}
    if asked.has_effect("epochs"):
        changed["init_from_optimizer"] = True
        changed["epochs"] = max(1, asked.epochs - search.epochs_before)
        if asked.max_steps:
            changed["max_steps"] = max(1, asked.max_steps - search.steps_before)
    return asked.model_copy(update=changed)


def _digest(asked: TrainConfig) -> str:
    """What tells one trial's parameters from another's: a default, or their order, does not."""
    told = json.dumps(asked.model_dump(mode="json", exclude_defaults=True), sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:32]
