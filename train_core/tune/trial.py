"""A trial of a search: a `ray.tune.Trainable` whose steps are the reports of a run.

It runs in a process of Tune's, where it starts the driver of its run as a process of its own. The
driver joins Tune's Ray, and the workers are in the trial's placement group: nothing is started, or
counted, twice.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import ray
from ray.tune import PlacementGroupFactory, Trainable
from ray.tune.result import DONE, RESULT_DUPLICATE, SHOULD_CHECKPOINT

from train_core.errors import ConfigError, EvertrainError
from train_core.requests import DEFAULT_EXPERIMENT, DriverRequest, LentPlaces
from train_core.text.shown_text import without_secrets
from train_core.tune.generations import choose
from train_core.tune.parameters import of_trial, places_of
from train_core.tune.references import TuneCheckpoint
from train_core.tune.trial_training import TrialTraining

STEP, RUN, CHECKPOINT = "evertrain/step", "evertrain/run", "evertrain/checkpoint"
"""What a result has beside the metrics: the optimizer steps, the run's address, a name in it."""
_LOG = "evertrain.log"
_log = logging.getLogger(__name__)


class Trial(Trainable):
    """A trial. `trainable` makes subclasses, which say what is searched."""

    asked: ClassVar[Mapping[str, Any]] = {}
    """The parameters that all trials have."""
    storage: ClassVar[str] = ""
    tracking_uri: ClassVar[str] = ""
    experiment: ClassVar[str] = DEFAULT_EXPERIMENT

    @classmethod
    def default_resource_request(cls, config: dict[str, Any]) -> PlacementGroupFactory:
        """A place for each worker; the trial's own process waits, and reserves nothing."""
        try:
            found = of_trial(cls.asked, config)
        except EvertrainError:
            # Its own process says what is wrong: this one is the search's.
            return PlacementGroupFactory([{"CPU": 1}])
        return PlacementGroupFactory(places_of(found), strategy=found.placement_strategy)

    def setup(self, config: dict[str, Any]) -> None:
        """Begin no training yet: Tune may give a checkpoint first."""
        # A relative path in a parameter means what it means to the program that searches.
        os.chdir(os.environ.get("TUNE_ORIG_WORKING_DIR", os.curdir))
        self._reference: TuneCheckpoint | None = None
        self._training: TrialTraining | None = None

    def step(self) -> dict[str, Any]:
        """The next report. Raises ConfigError for a wrong parameter, and as `fit`."""
        if self._training is None:
            self._training = self._begin()
        report = self._training.next()
        if report is None:
            return {RESULT_DUPLICATE: True}
        found = self._training.generation
        named = self._training.reference(report, self.trial_id)
        self._reference = named.with_checkpoint_of(self._reference)
        if self._training.has_last:
            # Before Tune knows: at the end of a search it waits ten seconds for a trial to end.
            self._training.wait()
        metrics = {
            name: math.nan if value is None else value for name, value in report.metrics.items()
        }
        return {
            **metrics,
            # Where it is known to be the last, Tune need not ask for another one.
            DONE: self._training.has_last,
            STEP: report.step + found.search.steps_before,
            RUN: self._training.folder.url,
            CHECKPOINT: named.name,
            SHOULD_CHECKPOINT: bool(named.name),
        }

    def save_checkpoint(self, checkpoint_dir: str) -> None:
        """Write what names the newest checkpoint up to the last report, and its weights."""
        if self._reference is not None:
            try:
                self._reference.write(checkpoint_dir)
            except ConfigError as error:
                # The run's own retention, by the parameters of the search: its metrics count.
                _log.warning("a checkpoint of trial %s has no weights: %s", self.trial_id, error)
                self._reference.without_checkpoint().write(checkpoint_dir)

    def load_checkpoint(self, checkpoint: Any) -> None:
        """Go on from a checkpoint of this trial's, or of another one's."""
        self._end()
        self._reference = TuneCheckpoint.read(checkpoint)

    def reset_config(self, new_config: dict[str, Any]) -> bool:
        """End the training: with `reuse_actors` another trial has this process from now on."""
        self._end()
        self._reference = None
        return True

    def cleanup(self) -> None:
        """End the training, which is saved: Tune has stopped it, if it had not come to its end."""
        self._end()

    def _begin(self) -> TrialTraining:
        asked = of_trial(self.asked, self.config)
        assert self._storage is not None, "Tune gives one to each trial"
        name = self._storage.experiment_dir_name
        generation = choose(self.storage, name, self.trial_id, asked, self._reference)
        request = DriverRequest(
            storage=self.storage,
            run=generation.run,
            config=generation.config,
            tracking_uri=self.tracking_uri,
            experiment=self.experiment,
            records_tracking_uri=without_secrets(self.tracking_uri) == self.tracking_uri,
            is_paced=True,
            search=generation.search,
            lent=_lent(),
        )
        return TrialTraining(request, generation, Path(self.logdir, _LOG))

    def _end(self) -> None:
        if self._training is not None:
            self._training.end()
            self._training = None


def _lent() -> LentPlaces:
    """The places of this trial's workers, on Tune's Ray."""
    context = ray.get_runtime_context()
    group = ray.util.get_current_placement_group()
    assert group is not None, "Tune gives one to each trial"
    return LentPlaces(
        address=context.gcs_address,
        placement_group=group.id.hex(),
        places=group.bundle_specs,
        runtime_env=context.runtime_env.to_dict(),
    )
