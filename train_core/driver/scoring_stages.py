"""The stages of a batch inference: it reads an existing run, and takes no lease."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack

from train_core.cluster.resources import with_gpus
from train_core.driver.ray_session import RaySession
from train_core.driver.server import StageHandlers
from train_core.requests import Prepared, ScoringRequest
from train_core.results import CheckpointSummary, PredictionsResult
from train_core.stages import INFER, InferArguments
from train_core.storage.cleanup.dead_scorers import clearing_dead_scorers
from train_core.storage.coordination.pins import pinned
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import ResultWriter
from train_core.timing import TIMING, Timing


class ScoringStages(StageHandlers):
    """The stages of one request to score.

    `job`: the Ray job that runs this driver; empty on one machine.
    """

    def __init__(
        self, request: ScoringRequest, ray: RaySession, job: str = "", timing: Timing = TIMING
    ) -> None:
        super().__init__()
        self._request = request
        self._folder = RunFolder(request.storage, request.run)
        # It need not be where the training was.
        self._config = request.config.model_copy(update={"gpus_per_worker": None})
        self._ray = ray
        self._job = job
        self._timing = timing
        self._scoring = ExitStack()
        self.handle(INFER, self.infer)

    def prepare(self) -> Prepared:
        """Check the request."""
        from train_core.driver.preparing.preflight import check_scoring

        prepared = check_scoring(self._folder, self._request)
        # One worker is enough: the shards queue.
        self._ray.join(self._config.model_copy(update={"num_workers": 1, "min_workers": None}))
        self._config = with_gpus(self._config)
        self._scoring.enter_context(
            clearing_dead_scorers(self._folder, self._job, timing=self._timing.coordination)
        )
        return prepared

    def infer(self, asked: InferArguments) -> PredictionsResult:
        """Score new data with a checkpoint."""
        from train_core.scoring.predict import infer

        self._ray.wait_until_up()
        with pinned_summaries(self._folder, [asked.checkpoint], "infer", job=self._job):
            return infer(
                self._ray.pool_for_scoring(self._config),
                ResultWriter(self._folder),
                self._config,
                asked.checkpoint,
                asked.source,
                model=self._request.model,
                keeps=self._request.infer_keeps,
            )

    def failed(self, message: str) -> None:
        """MLflow shows predictions that were made, and no others."""

    def close(self, status: str) -> None:
        """End the workers; Ray ends with the process."""
        self._ray.expect_end()
        self._ray.end_for_good()
        self._scoring.close()


def pinned_summaries(
    folder: RunFolder,
    summaries: Sequence[CheckpointSummary],
    activity: str,
    *,
    attempt: int = 0,
    job: str,
) -> AbstractContextManager[None]:
    """Keep the checkpoints while they are read, also from a driver that has the run's lease.

    `attempt` has the lease itself; 0: this one has not.
    """
    names = [folder.find(summary.name).name for summary in summaries]
    return pinned(folder.store, names, activity, attempt=attempt, job=job)
