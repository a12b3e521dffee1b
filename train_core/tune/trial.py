"""A trial of a search: a `ray.tune.Trainable` whose steps are the reports of a run.

It runs in a process of Tune's, where it starts the driver of its run as a process of its own. The
driver joins Tune's Ray, and the workers are in the trial's placement group: nothing is started, or
counted, twice.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, ClassVar

import ray
from ray.tune import PlacementGroupFactory, Trainable
from ray.tune.result import DONE, RESULT_DUPLICATE, SHOULD_CHECKPOINT

from train_core.client.driver_handle import Driver, end_status
from train_core.errors import ConfigError, EvertrainError
from train_core.fitting import train_and_follow
from train_core.policy.end_status import EndStatus
from train_core.requests import DEFAULT_EXPERIMENT, DriverRequest, LentPlaces
from train_core.results import Reported
from train_core.storage.coordination import lease
from train_core.storage.coordination.stop_request import SCHEDULER, ask_to_stop
from train_core.storage.run_folder import RunFolder
from train_core.text.shown_text import without_secrets
from train_core.tune.generations import Generation, choose
from train_core.tune.parameters import of_trial, places_of
from train_core.tune.references import TuneCheckpoint

STEP, RUN, CHECKPOINT = "evertrain/step", "evertrain/run", "evertrain/checkpoint"
"""What a result has beside the metrics: the optimizer steps, the run's address, a name in it."""
_LOG = "evertrain.log"
_SAVING_S = 60.0
"""How long an earlier process of the trial may take to end, beside `grace_s`."""
_PREPARING_S = 60.0
"""How long the driver of a trial that is ended may take until it has the run."""
_POLL_S = 0.2
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


class TrialTraining:
    """The training of a trial, in a thread of the trial's process, which follows the driver.

    The thread asks for no report before the last one is taken.
    """

    def __init__(self, request: DriverRequest, generation: Generation, log: Path) -> None:
        self.generation = generation
        self.folder = RunFolder(request.storage, request.run)
        self._request = request
        self._log = log.open("a", errors="replace")
        self._driver: Driver | None = None
        self._closing = threading.Lock()
        self._is_closed = False
        self.has_last = False
        """Whether the last report of a workload was given: its training ends by itself."""
        self._is_ending = threading.Event()
        self._reports: SimpleQueue[Reported | BaseException | None] = SimpleQueue()
        self._wanted = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, name="trial", daemon=True)
        self._thread.start()

    def next(self) -> Reported | None:
        """The next report; None after the last one. Raises what ended the training."""
        self._wanted.release()
        found = self._reports.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def reference(self, report: Reported, trial: str) -> TuneCheckpoint:
        """What names the checkpoint of a report that was given; it may have none."""
        search = self.generation.search
        found = TuneCheckpoint(run=self.folder.url, trial=trial, step=report.step)
        if report.checkpoint is None:
            return found
        try:
            commit = self.folder.find(report.checkpoint.name)
        except FileNotFoundError:
            # The run's own retention, by the parameters of the search.
            return found
        # A function may report again after any folder.
        is_function = commit.manifest.reported is not None
        self.has_last = commit.manifest.is_last and not is_function
        return found.model_copy(
            update={
                "name": str(commit.name),
                "digest": commit.digest,
                "epochs": search.epochs_before + commit.manifest.epoch,
                "steps": search.steps_before + commit.step,
            }
        )

    def wait(self) -> None:
        """Wait until the training has ended by itself, which has given its last report."""
        self._wanted.release()
        self._thread.join()

    def end(self) -> None:
        """End a training that still runs: it is stopped by the scheduler, and saved."""
        if self._thread.is_alive():
            self._is_ending.set()
            self._close_driver(EndStatus.KILLED)
        self._wanted.release()
        self._thread.join()
        self._log.close()

    def _close_driver(self, status: EndStatus) -> None:
        """Close it with the status, if nobody has closed it with another one."""
        with self._closing:
            if self._driver is not None and not self._is_closed:
                self._is_closed = True
                if self._is_ending.is_set():
                    self._note_who_stops(self._driver)
                self._driver.close(status)

    def _note_who_stops(self, driver: Driver) -> None:
        try:
            # IMPORTANT: until then the run may be another process's, which is not Tune's to end.
            driver.prepared(_PREPARING_S)
            if lease.holder_of(self.folder.store):
                attempt = lease.newest_attempt(self.folder.store)
                ask_to_stop(self.folder.store, attempt, "Ray Tune ends the trial", SCHEDULER)
        except (EvertrainError, OSError):
            """It is ended all the same, and shown as interrupted."""

    def _run(self) -> None:
        try:
            self._train()
        except BaseException as error:  # noqa: BLE001 (Tune's call raises it)
            self._reports.put(error)
        else:
            self._reports.put(None)

    def _train(self) -> None:
        self._wait_for_run()
        if self._is_ending.is_set():
            return
        self._driver = driver = Driver.start(self._request, self._write_to_log)
        if self._is_ending.is_set():
            # IMPORTANT: after the driver is set, which `end` may not have found.
            self._close_driver(EndStatus.KILLED)
            return
        kind: type[BaseException] | None = None
        try:
            driver.prepared()
            train_and_follow(driver, self._take, after=self.generation.after)
        except BaseException as error:
            kind = type(error)
            raise
        finally:
            self._close_driver(EndStatus.KILLED if self._is_ending.is_set() else end_status(kind))

    def _wait_for_run(self) -> None:
        """Wait while another process of this trial saves the run: Tune may begin it anew before."""
        deadline = time.monotonic() + _SAVING_S + self._request.config.grace_s
        while (
            self.folder.exists()
            and lease.holder_of(self.folder.store) is not None
            and time.monotonic() < deadline
            and not self._is_ending.wait(_POLL_S)
        ):
            """It is asked again."""

    def _write_to_log(self, line: str) -> None:
        # The training does not end because a disk is full.
        with suppress(OSError, ValueError):
            print(line, file=self._log, flush=True)

    def _take(self, report: Reported) -> None:
        """Wait until Tune wants the report, and give it."""
        self._wanted.acquire()
        if self._is_ending.is_set():
            raise _Ended
        self._reports.put(report)


class _Ended(Exception):  # noqa: N818 (it is no error)
    """Nobody wants reports any more."""


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
