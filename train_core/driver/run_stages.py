"""The stages of a run, as its driver carries them out."""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING

import psutil

from train_core.driver.held_run import HeldRun
from train_core.driver.ray_session import RaySession
from train_core.driver.report_feed import ReportFeed
from train_core.driver.runner import runner_of
from train_core.driver.scoring_stages import ScoringStages, pinned_summaries
from train_core.driver.server import StageHandlers, Stages
from train_core.driver.timeline import EVALUATED, RAY_UP, WORKERS_READY, Timeline
from train_core.errors import StageError, WorkloadError
from train_core.policy.end_status import EndStatus
from train_core.quick_imports import garbage_collection_paused
from train_core.requests import DriverRequest, Prepared, Request, ScoringRequest
from train_core.results import (
    CheckpointSummary,
    EvaluationResult,
    GateResult,
    PredictionsResult,
    Report,
    Reports,
    TrainResult,
)
from train_core.stages import (
    EVALUATE,
    GATE,
    INFER,
    PROMOTE,
    PUBLISH,
    REPORTS,
    TRAIN,
    EvaluateArguments,
    GateArguments,
    InferArguments,
    NoArguments,
    PromoteArguments,
    PublishArguments,
    ReportsArguments,
)
from train_core.storage.cleanup.retention_after_commit import delete_superseded
from train_core.storage.cleanup.retention_of_run import finalists_of
from train_core.storage.committed import with_files
from train_core.storage.run_folder import Commit, RunFolder
from train_core.timing import TIMING, Timing
from train_core.tracking.delivery.mirror import Mirror

if TYPE_CHECKING:
    from train_core.cluster.pool import WorkerPool
    from train_core.driver.gate_stages import Gate
    from train_core.rank.distributed.pace import Pace

_log = logging.getLogger("train_core.driver")


def stages_of(request: Request, ray: RaySession, job: str = "", timing: Timing = TIMING) -> Stages:
    """The stages of the request.

    `job`: the Ray job that runs this driver; empty on one machine.
    """
    if isinstance(request, ScoringRequest):
        return ScoringStages(request, ray, job, timing)
    assert isinstance(request, DriverRequest)
    return RunStages(request, ray, job, timing)


class RunStages(StageHandlers):
    """The stages of one request to train.

    `job`: the Ray job that runs this driver; empty on one machine. Each raises
    FencedError if a newer attempt has the run, and StoppedError if it shall end.
    """

    def __init__(
        self, request: DriverRequest, ray: RaySession, job: str = "", timing: Timing = TIMING
    ) -> None:
        super().__init__()
        self.folder = RunFolder(request.storage, request.run)
        self.config = request.config
        self.held: HeldRun | None = None
        """The run, once it is taken."""
        self.mirror: Mirror | None = None
        self._pace: Pace | None = None
        self._request = request
        self._runner = runner_of(request.config)
        self._ray = ray
        self._job = job
        self._timing = timing
        self._failure = ""
        self._timeline = Timeline(psutil.Process().create_time())
        self._timeline.began_at = request.began_at or self._timeline.began_at
        self._feed = ReportFeed(
            self.folder,
            self._runner.uncovered,
            is_function=not request.config.trainable.uses_pool,
            poll_s=timing.report_poll_s,
        )
        self.handle(TRAIN, self.train)
        self.handle(REPORTS, self.reports)
        self.handle(EVALUATE, self.evaluate)
        self.handle(INFER, self.infer)
        self.handle(GATE, self.gate)
        self.handle(PROMOTE, self.promote)
        self.handle(PUBLISH, self.publish)

    def prepare(self) -> Prepared:
        """Check the request, create the run if it is new, and take it."""
        # It imports torch, while Ray starts.
        with garbage_collection_paused():
            from train_core.driver.preparing.preparation import prepare_run
        made = prepare_run(
            self._request, self.folder, self._runner, self._ray, self._job, self._timing
        )
        self.config, self.held, self.mirror = made.config, made.held, made.mirror
        if self.held is not None:
            from train_core.rank.distributed.pace import Pace

            self._pace = self.held.pace = Pace(is_kept=self._request.is_paced)
        return made.prepared

    def train(self, _: NoArguments) -> TrainResult:
        """Train to the end; where workers die, begin again from the newest commit.

        Raises StoppedError if the training was asked to stop, and did.
        """
        with self._feed.open():
            self._ray.wait_until_up()
            begin, held = time.monotonic(), self._held("train")
            with self._mirrored("train"):
                newest = self._runner.train(held, self.config, self._ray, self._timing, self._job)
        # A process that died after its last commit has not done it.
        delete_superseded(held.writer, self.config)
        seconds = time.monotonic() - begin
        return self._train_result(newest, held.attempt, seconds)

    def reports(self, asked: ReportsArguments) -> Reports:
        """What the training has reported after a step, as soon as there is something."""
        if self._pace is not None:
            self._pace.take(asked.after)
        return Reports(reports=self._feed.after(asked.after, asked.wait_s))

    def evaluate(self, asked: EvaluateArguments) -> list[EvaluationResult]:
        """Measure checkpoints on a split."""
        from train_core.scoring.evaluate import evaluate

        self._ray.wait_until_up()
        held = self._checked("evaluate")
        with (
            self._mirrored("evaluate"),
            self._pinned(asked.checkpoints, "evaluate", held),
        ):
            results = evaluate(
                self._ray.pool_for_scoring(self.config),
                held.writer,
                self.config,
                asked.checkpoints,
                asked.split,
                self._max_batches,
            )
        self._timeline.mark(EVALUATED)
        return results

    def infer(self, asked: InferArguments) -> PredictionsResult:
        """Score new data with a checkpoint."""
        from train_core.scoring.predict import infer

        self._ray.wait_until_up()
        held = self._checked("infer")
        with self._mirrored("infer"), self._pinned([asked.checkpoint], "infer", held):
            return infer(
                self._ray.pool_for_scoring(self.config),
                held.writer,
                self.config,
                asked.checkpoint,
                asked.source,
                self._max_batches,
                keeps=self._request.pipeline.infer_keeps,
            )

    def gate(self, asked: GateArguments) -> GateResult:
        """Register a checkpoint as a version, and decide on it beside the champion."""
        # Shown at once: it may be long until a person has answered.
        with self._mirrored("gate"):
            return self._gate("gate").decide(asked.best)

    def promote(self, asked: PromoteArguments) -> GateResult:
        """Make the version the champion, if that was decided or is approved."""
        return self._gate("promote").promote(asked.result, asked.approval)

    def publish(self, outcome: PublishArguments) -> Report:
        """End the workers, draw the curves, complete the mirror and write report.json."""
        from train_core.driver.publication import publish

        held = self._checked("publish")
        self._ray.end_workers()
        if self._ray.up_at:
            self._timeline.mark(RAY_UP, self._ray.up_at)
        if self._ray.workers_ready_at:
            self._timeline.mark(WORKERS_READY, self._ray.workers_ready_at)
        return publish(outcome, held, self.folder, self.config, self.mirror, self._timeline)

    def failed(self, message: str) -> None:
        """Note why a stage failed, for MLflow."""
        self._failure = message

    def close(self, status: str) -> None:
        """End the mirror and free the run; Ray ends with the process.

        A training that still runs is asked to stop, and may take `grace_s` for its last checkpoint.
        """
        end, held = EndStatus(status), self.held
        # The rest of this writes to MLflow and the storage, and needs no Ray.
        self._ray.expect_end()
        try:
            if held:
                held.supervisor.stop()
        finally:
            self._ray.end_for_good()
            if self.mirror:
                # A newer attempt reports the status of its run itself.
                is_replaced = held and held.supervisor.is_replaced()
                self.mirror.close(None if is_replaced else end, why=self._failure)
            if held:
                held.stop_heartbeats()
        if held:
            held.release(end)

    def _gate(self, stage: str) -> Gate:
        from train_core.driver.gate_stages import Gate

        held, options = self._checked(stage), self._request.pipeline.gate
        if options is None:
            raise StageError(stage, f"run {self.folder.name!r} was started without a gate")

        def pool() -> WorkerPool:
            self._ray.wait_until_up()
            return self._ray.pool_for_scoring(self.config)

        return Gate(self.folder, self.config, options, held, pool)

    @property
    def _max_batches(self) -> int:
        return 1 if self._request.dry_run else 0

    def _held(self, stage: str) -> HeldRun:
        if self.held is None:
            raise StageError(stage, f"run {self.folder.name!r} was not prepared")
        return self.held

    def _checked(self, stage: str) -> HeldRun:
        """The run, if this attempt has it and is not to end."""
        held = self._held(stage)
        held.check()
        return held

    def _mirrored(self, stage: str) -> AbstractContextManager[None]:
        """Show the stage in MLflow while it runs, if the run is mirrored."""
        return self.mirror.during(stage) if self.mirror else nullcontext()

    def _pinned(
        self, summaries: list[CheckpointSummary], activity: str, held: HeldRun
    ) -> AbstractContextManager[None]:
        """Keep the checkpoints while they are read."""
        job, attempt = self._job, held.attempt
        return pinned_summaries(self.folder, summaries, activity, attempt=attempt, job=job)

    def _train_result(self, newest: Commit, attempt: int, seconds: float) -> TrainResult:
        config, live = self.config, self.folder.live() or {}
        kept = with_files(self.folder.checkpoints())
        if not kept and config.has_workload:
            raise WorkloadError(
                f"the training function of run {self.folder.name!r} has reported no checkpoint, so "
                f"there is nothing that {config.predictor} could read: report one, or begin a run "
                "without a predictor"
            )
        finalists = kept
        if config.has_effect("checkpoint_every_epochs") and config.checkpoint_every_epochs:
            finalists = finalists_of(kept, config)
        return TrainResult(
            run=self.folder.name,
            attempt=attempt,
            step=newest.step,
            epoch=newest.manifest.epoch,
            samples_seen=newest.manifest.samples_seen,
            stopped_by=newest.manifest.stopped_by,
            metrics=newest.manifest.metrics,
            samples_per_s=live.get("samples_per_s") or 0.0,
            seconds=seconds,
            checkpoints=[self.folder.summary(c) for c in kept],
            finalists=[self.folder.summary(c) for c in finalists],
            monitor=self.config.monitor,
            monitor_order=self.config.order,
            processors=newest.manifest.processors,
            return_value=newest.manifest.returned,
        )
