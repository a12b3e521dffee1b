"""The stages of one request, as the driver process runs them: plain JSON in, plain JSON out."""

from __future__ import annotations

import logging
import time
from contextlib import AbstractContextManager, ExitStack, suppress
from typing import TYPE_CHECKING, Any

import psutil

from train_core.config import LOCAL, TrainConfig
from train_core.engine.cluster.resources import check_resources, fits_here, with_gpus
from train_core.engine.driver.supervisor import Supervisor
from train_core.engine.driver.timeline import (
    EVALUATED,
    PUBLISHED,
    RAY_UP,
    WORKERS_READY,
    Timeline,
)
from train_core.engine.tracking.mirror import Mirror
from train_core.entry_points import MEASURE_SHARD, TRAIN
from train_core.errors import StorageError
from train_core.policy.end_status import EndStatus
from train_core.requests import DriverRequest
from train_core.results import (
    CheckpointSummary,
    EvaluationResult,
    PredictionsResult,
    Report,
    Tracking,
    TrainResult,
)
from train_core.storage.cleanup.retention import finalists_of
from train_core.storage.cleanup.superseded import (
    clearing_dead_scorers,
    delete_orphans_of_the_dead,
    delete_superseded,
)
from train_core.storage.coordination import lease
from train_core.storage.coordination.lease import Lease
from train_core.storage.coordination.pins import pinned
from train_core.storage.records.amendments import Amendment
from train_core.storage.records.data_files import FileList
from train_core.storage.records.journal import read_good_segments
from train_core.storage.records.names import CURVES_PNG, REPORT_JSON
from train_core.storage.records.run_record import RunRecord
from train_core.storage.run_folder import Checkpoint, RunFolder
from train_core.storage.run_writer import ResultWriter, RunWriter, begin_attempt, create_run

if TYPE_CHECKING:
    from train_core.engine.cluster.pool import WorkerPool
    from train_core.engine.driver.preflight import Checked

PRELOAD = tuple(name.partition(":")[0] for name in (TRAIN, MEASURE_SHARD))
"""What the workers import as they start: torch, and what trains and evaluates."""
NODES_WITHIN_S = 60.0
"""How long a cluster that was started again is given, for a run that was there before."""

_log = logging.getLogger("train_core.driver")


class DriverStages:
    """The stages of one request, each a method that takes and gives plain JSON.

    `job` is the job of a cluster that carries them out, if one does.
    """

    def __init__(self, job: str = "") -> None:
        self._job = job
        self.mirror: Mirror | None = None
        self._timeline = Timeline(psutil.Process().create_time())
        self._lease: Lease | None = None
        self._alive = ExitStack()
        self._supervisor: Supervisor | None = None
        self._pool: WorkerPool | None = None

    def prepare(self, request: dict[str, Any]) -> dict[str, Any]:
        """Check the request and create the run if it is new."""
        from train_core.engine.driver.preflight import check, effective

        self.request = DriverRequest.model_validate(request)
        self._timeline.began_at = self.request.began_at or self._timeline.began_at
        self.folder = RunFolder(self.request.storage, self.request.run)
        if self.request.scores_only:
            return self._prepare_scoring()
        self.config = effective(self.request)
        mirror = self._connected_mirror()
        checked = check(self.folder, self.request.model_copy(update={"config": self.config}))
        prepared = checked.prepared
        record = None if prepared.resumed else self._new_record(checked)
        if record and (unchanged_since := self._run_that_has_it(record, checked.files)):
            return prepared.model_copy(update={"unchanged_since": unchanged_since}).model_dump()
        # What a cluster can give is only known there; nothing has been written yet.
        self._join_cluster(NODES_WITHIN_S if prepared.resumed else 0)
        self.config = with_gpus(self.config)
        if mirror is not None:
            mirror.check()
        if record is not None:
            self._create_run(record, checked.files)
        self._begin_run()
        self._start_on_cluster()
        if mirror is not None:
            mirror.start()
            self.mirror = mirror
        return prepared.model_copy(update={"job_url": self.request.job_url}).model_dump()

    def _connected_mirror(self) -> Mirror | None:
        """A mirror that asks the server in the background; None: MLflow shows nothing."""
        asked = self.request
        if not asked.tracking_uri:
            return None
        mirror = Mirror(self.folder, asked.tracking_uri, asked.experiment, job_url=asked.job_url)
        mirror.connect()
        return mirror

    def _new_record(self, checked: Checked) -> RunRecord:
        from train_core.engine.driver.preflight import new_record

        return new_record(
            self.request, self.config, checked.datasets, checked.origin, checked.files
        )

    def _create_run(self, record: RunRecord, files: FileList | None) -> None:
        from train_core.engine.driver.preflight import with_surroundings

        self.folder.refuse_leftovers()
        # Of two that begin the run at once, one creates it and one gets the lease.
        with suppress(FileExistsError):
            create_run(self.folder, with_surroundings(record, self.config), files)

    def _begin_run(self) -> None:
        """Take the run, and write down what this attempt is asked for."""
        from train_core.engine.data.recorded import check_continuation, with_defaults
        from train_core.engine.driver.preflight import pipeline_of

        attempt = self._take_run()
        self.folder.check_name(self.request.flow_run)
        check_continuation(self.folder, self.config)
        config = with_defaults(self.config).recorded()
        asked = Amendment(config=config, pipeline=pipeline_of(self.request))
        RunWriter(self.folder, attempt).amend(asked)

    def _run_that_has_it(self, record: RunRecord, files: FileList | None) -> str:
        """The finished run that has all that this one would come to, if it is not to come again."""
        if not self.request.skip_unchanged or self.request.dry_run:
            return ""
        from train_core.engine.driver.unchanged import run_that_has_it

        return run_that_has_it(record, files, self.request)

    def _prepare_scoring(self) -> dict[str, Any]:
        from train_core.engine.driver.preflight import check_scoring

        # It need not be where the training was.
        self.config = self.request.config.model_copy(update={"gpus_per_worker": None})
        prepared = check_scoring(self.folder, self.request)
        # One worker is enough: the shards queue.
        self._join_cluster(fewest=1)
        self.config = with_gpus(self.config)
        self._alive.enter_context(clearing_dead_scorers(self.folder, self._job))
        return prepared.model_dump()

    def start_ray(self, config: TrainConfig) -> None:
        """Start Ray, and on this machine the workers, which import torch in the background.

        What fails is raised by the first stage that needs it. Workers of a cluster are asked for
        when the run is taken, so that a driver that is refused holds nothing.
        """
        from train_core.engine.cluster.pool_settings import POOL_SETTINGS
        from train_core.engine.cluster.runtime import start_ray
        from train_core.engine.driver.pool_launcher import is_fixed

        start_ray(config, POOL_SETTINGS)
        self._timeline.mark(RAY_UP)
        if is_fixed(config) and not self._pool:
            decided = with_gpus(config)
            if fits_here(decided):
                self._started_pool(decided)

    def train(self) -> dict[str, Any]:
        """Train to the end; where workers die, begin again from the newest commit.

        Raises StoppedError if the training was asked to stop, and did.
        """
        from train_core.engine.cluster.pool import WorkerPool
        from train_core.engine.driver.pool_launcher import PoolLauncher

        begin = time.monotonic()
        supervisor, held = self._supervisor, self._lease
        assert supervisor
        assert held
        self._pool = self._pool or WorkerPool(self.config, PRELOAD)
        newest = supervisor.train(self.config, PoolLauncher(self._pool))
        # A process that died after its last commit has not done it.
        delete_superseded(RunWriter(self.folder, held.attempt), self.config)
        return self._train_result(newest, time.monotonic() - begin).model_dump()

    def evaluate(self, checkpoints: list[dict[str, Any]], split: str) -> list[dict[str, Any]]:
        """Measure checkpoints on a split."""
        from train_core.engine.scoring.evaluate import evaluate

        self._check_lease()
        if self.mirror:
            self.mirror.begin("evaluate")
        summaries = [CheckpointSummary.model_validate(one) for one in checkpoints]
        with self._pinned(summaries, "evaluate"):
            what = (self._writer(), self.config, summaries, split, self._max_batches)
            results = evaluate(self._scoring_pool(), *what)  # type: ignore[arg-type]  # checked by the evaluator
        if self.mirror:
            self.mirror.log_evaluations(results)
        self._timeline.mark(EVALUATED)
        return [result.model_dump() for result in results]

    def infer(self, checkpoint: dict[str, Any], source: str) -> dict[str, Any]:
        """Score new data with a checkpoint."""
        from train_core.engine.scoring.predict import infer

        self._check_lease()
        if self.mirror:
            self.mirror.begin("infer")
        summary = CheckpointSummary.model_validate(checkpoint)
        with self._pinned([summary], "infer"):
            what = (self._writer(), self.config, summary, source, self._max_batches)
            result = infer(self._scoring_pool(), *what)
        if self.mirror:
            self.mirror.log_predictions(result)
        return result.model_dump()

    def publish(
        self,
        train: dict[str, Any],
        evaluations: list[dict[str, Any]],
        best: dict[str, Any],
        predictions: dict[str, Any],
        seconds: dict[str, float],
    ) -> dict[str, Any]:
        """End the workers, draw the curves, complete the mirror and write report.json."""
        self._check_lease()
        if self._pool:
            self._pool.close()
        newest = max(self.folder.checkpoints(), key=lambda c: c.name)
        self._draw_curves(newest)
        entries = read_good_segments(self.folder.store, newest.manifest.journal)
        self._timeline.mark_steps(list(entries))
        if self._pool and self._pool.ready_at:
            self._timeline.mark(WORKERS_READY, self._pool.ready_at)
        measured = [EvaluationResult.model_validate(one) for one in evaluations]
        chosen = CheckpointSummary.model_validate(best)
        test = [e for e in measured if e.split == "test" and e.checkpoint.name == chosen.name]
        test_metrics = test[0].metrics if test else {}
        predicted = PredictionsResult.model_validate(predictions)
        if self.mirror:
            # A driver before this one may have died before it came to that.
            self.mirror.log_evaluations(measured)
            self.mirror.log_predictions(predicted)
            self.mirror.log_outcome(chosen, test_metrics, self.config)
            self.mirror.flush()
        self._timeline.mark(PUBLISHED)
        report = Report(
            run=self.folder.name,
            uri=self.folder.store.uri(REPORT_JSON),
            workload=self.config.workload,
            train=TrainResult.model_validate(train),
            evaluations=measured,
            best=chosen,
            test_metrics=test_metrics,
            predictions=predicted,
            tracking=self.mirror.tracking() if self.mirror else Tracking(),
            seconds=seconds,
            timeline=self._timeline.seconds(),
        )
        self._write(REPORT_JSON, (report.model_dump_json(indent=1) + "\n").encode())
        if self._lease:
            # Stages that were tried again left something, too.
            delete_orphans_of_the_dead(RunWriter(self.folder, self._lease.attempt))
        return report.model_dump()

    def _draw_curves(self, newest: Checkpoint) -> None:
        from train_core.engine.metrics.figures import curves_until

        self._check_lease()
        self._write(CURVES_PNG, curves_until(newest, self.folder.store))

    def _write(self, key: str, data: bytes) -> None:
        """Write the report or the curves, if this attempt has the run and is not to end."""
        self._check_lease()
        assert self._lease
        RunWriter(self.folder, self._lease.attempt).write(key, data)

    def _writer(self) -> ResultWriter:
        """Writes results: fenced, if this process has the run."""
        if self._lease is None:
            return ResultWriter(self.folder)
        return RunWriter(self.folder, self._lease.attempt)

    def close(self, status: str) -> None:
        """End the mirror and free the run; Ray ends with the process.

        A training that still runs is asked to stop, and may take `grace_s` for its last checkpoint.
        """
        end = EndStatus(status)
        try:
            if self._supervisor:
                self._supervisor.stop()
        finally:
            if self._pool:
                self._pool.end()
            if self.mirror:
                # What becomes of a run that a newer attempt has, that one says.
                is_replaced = self._supervisor and self._supervisor.is_replaced()
                self.mirror.close(None if is_replaced else end)
            self._alive.close()
        if self._lease:
            self._lease.end = end
            try:
                self._lease.release()
            except StorageError as error:
                _log.warning("the lease was not released: %s", error)

    @property
    def _max_batches(self) -> int:
        return 1 if self.request.dry_run else 0

    def _join_cluster(self, patience_s: float = 0, *, fewest: int = 0) -> None:
        if self.config.ray_address != LOCAL:
            self.start_ray(self.config)
            needed = {"num_workers": fewest, "min_workers": None} if fewest else {}
            check_resources(self.config.model_copy(update=needed), patience_s)

    def _start_on_cluster(self) -> None:
        """Have the workers of a cluster start, if there is room for all, while others prepare."""
        from train_core.engine.cluster.elastic import room

        if self.config.ray_address == LOCAL:
            return
        try:
            if room(self.config) >= self.config.num_workers:
                self._started_pool(self.config)
        except Exception as error:  # noqa: BLE001 (whatever Ray raises while its head is away)
            _log.debug("the workers are started with the training: %s", error)

    def _take_run(self) -> int:
        """Take the run's lease, and keep its heart beating until this is closed: the attempt."""
        self._lease = begin_attempt(self.folder)
        self._alive.enter_context(lease.alive(self._lease))
        self._alive.enter_context(clearing_dead_scorers(self.folder, self._job))
        delete_orphans_of_the_dead(RunWriter(self.folder, self._lease.attempt))
        self._supervisor = Supervisor(self.folder, self._lease)
        return self._lease.attempt

    def _started_pool(self, config: TrainConfig) -> WorkerPool:
        from train_core.engine.cluster.pool import WorkerPool

        self._pool = self._pool or WorkerPool(config, PRELOAD)
        self._pool.start(config)
        return self._pool

    def _scoring_pool(self) -> WorkerPool:
        """The workers of the training, or as many as there is room for."""
        from train_core.engine.cluster.elastic import with_room

        if self._pool and self._pool.has_workers_for(self.config):
            return self._pool
        return self._started_pool(with_room(self.config))

    def _check_lease(self) -> None:
        """Raise FencedError if a newer attempt has the run, and StoppedError if it shall end.

        Scoring alone needs no lease.
        """
        if self._supervisor:
            self._supervisor.check()

    def _pinned(
        self, summaries: list[CheckpointSummary], activity: str
    ) -> AbstractContextManager[None]:
        """Keep the checkpoints while they are read, also from one who has the run's lease."""
        names = [self.folder.find(summary.name).name for summary in summaries]
        attempt = self._lease.attempt if self._lease else 0
        return pinned(self.folder.store, names, activity, attempt=attempt, job=self._job)

    def _train_result(self, newest: Checkpoint, seconds: float) -> TrainResult:
        live, checkpoints = self.folder.live() or {}, self.folder.checkpoints()
        finalists = checkpoints
        if self.config.checkpoint_every_epochs:
            finalists = finalists_of(checkpoints, self.config.retention)
        assert self._lease is not None
        return TrainResult(
            run=self.folder.name,
            attempt=self._lease.attempt,
            step=newest.step,
            epoch=newest.manifest.epoch,
            samples_seen=newest.manifest.samples_seen,
            stopped_by=newest.manifest.stopped_by,
            metrics=newest.manifest.metrics,
            samples_per_s=live.get("samples_per_s") or 0.0,
            seconds=seconds,
            checkpoints=[self.folder.summary(c) for c in checkpoints],
            finalists=[self.folder.summary(c) for c in finalists],
        )
