"""The mirror: shows in MLflow what the run folder has committed, exactly once.

A thread of its own polls for new commits, sends what MLflow does not have, and repeats later what
failed; the training never waits for it. How much of the journal was sent is kept in MLflow beside
the metrics, so that the next attempt goes on from there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

from train_core.policy.end_status import EndStatus
from train_core.results import Tracking
from train_core.storage.run_folder import RunFolder
from train_core.timing import TIMING, TrackingTiming
from train_core.tracking.delivery.delivery_thread import Delivery
from train_core.tracking.delivery.run_sender import LoadTracker, RunSender
from train_core.tracking.tracker import Tracker

if TYPE_CHECKING:
    from train_core.config import TrainConfig

_log = logging.getLogger(__name__)


def mlflow_tracker() -> type[Tracker]:
    """The tracker that shows runs in MLflow."""
    from train_core.tracking.mlflow.mlflow_tracker import MlflowTracker

    return MlflowTracker


class Mirror:
    """Mirrors one run folder into one MLflow experiment.

    `connect` begins in the background, `check` raises if the server refuses, `start` begins to
    mirror once the run folder exists. It is told nothing of the results, which it finds in the
    folder: new commits at once, everything else when a stage begins or ends, and with `flush`.
    `close` must be called. The load of this machine is sent for a run that `is_live` only.
    """

    def __init__(
        self,
        folder: RunFolder,
        tracking_uri: str,
        experiment: str,
        *,
        is_live: bool = True,
        job_url: str = "",
        timing: TrackingTiming = TIMING.tracking,
        load_tracker: LoadTracker = mlflow_tracker,
    ) -> None:
        self._folder = folder
        self._timing = timing
        self._sender = RunSender(
            folder,
            tracking_uri,
            experiment,
            is_live=is_live,
            job_url=job_url,
            sample_s=timing.sample_s,
            load_tracker=load_tracker,
        )
        self._delivery = Delivery("mirroring into MLflow", self._sender, timing)

    @property
    def not_shown(self) -> list[str]:
        """The reasons why parts cannot be shown, though MLflow answers."""
        return self._sender.refusals.told if self._sender.refusals else []

    def connect(self) -> None:
        """Begin to load MLflow and to ask the server, in the background."""
        self._delivery.connect()

    def check(self) -> None:
        """Raise TrackingError if the server refuses; a server that is down is no error."""
        self._delivery.wait_until_connected(self._timing.check_s)
        if self._sender.refusal:
            raise self._sender.refusal

    def start(self, config: TrainConfig | None = None) -> None:
        """Begin to mirror. The run folder must have its run.json.

        `config` has the logins that may be needed to read the run's data.
        """
        self._sender.config = config
        self._delivery.start()

    @contextmanager
    def during(self, stage: str) -> Iterator[None]:
        """Show the stage as running, and what it has committed once it ends.

        A stage that fails is ended with the run.
        """
        self._sender.running.add(stage)
        self._look_again()
        yield
        self._sender.running.discard(stage)
        self._look_again()

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until MLflow has all that was committed before; return whether it has.

        Gives up early when the server has been down for the timing's `down_after_s`.
        """
        self._sender.look_again()
        return self._delivery.flush(self._timing.flush_s if timeout_s is None else timeout_s)

    def tracking(self) -> Tracking:
        """Where MLflow shows the run, as far as is known."""
        return self._sender.tracking

    def close(
        self, status: EndStatus | None, timeout_s: float | None = None, *, why: str = ""
    ) -> bool:
        """Send the rest, end the MLflow runs with `status`, and stop; return whether all was sent.

        Without a status the mirror only stops: another attempt drives the run. `why` is what a run
        that failed says.
        """
        is_sent = True
        if status and self._delivery.is_started:
            self._delivery.finish_with_next_flush(partial(self._sender.end, status, why))
            is_sent = self.flush(self._timing.close_s if timeout_s is None else timeout_s)
            if not is_sent:
                _log.warning(
                    "MLflow has not all of run %r. Nothing is lost: `evertrain mirror %s` sends "
                    "the rest from %s.",
                    self._folder.name,
                    self._folder.name,
                    self._folder.url,
                )
        self._delivery.close()
        return is_sent

    def _look_again(self) -> None:
        self._sender.look_again()
        self._delivery.wake()
