"""The training of a trial: its driver is started, followed report by report, and ended."""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from pathlib import Path
from queue import SimpleQueue

from train_core.client.driver_handle import Driver, end_status
from train_core.errors import EvertrainError
from train_core.fitting import train_and_follow
from train_core.policy.end_status import EndStatus
from train_core.requests import DriverRequest
from train_core.results import Reported
from train_core.storage.coordination import lease
from train_core.storage.coordination.stop_request import SCHEDULER, ask_to_stop
from train_core.storage.run_folder import RunFolder
from train_core.tune.generations import Generation
from train_core.tune.references import TuneCheckpoint

_SAVING_S = 60.0
"""How long an earlier process of the trial may take to end, beside `grace_s`."""
_PREPARING_S = 60.0
"""How long the driver of a trial that is ended may take until it has the run."""
_POLL_S = 0.2


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
