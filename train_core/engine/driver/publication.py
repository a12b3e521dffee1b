"""The end of a pipeline: the curves, what MLflow lacks, and report.json."""

from __future__ import annotations

from train_core.config import TrainConfig
from train_core.engine.driver.held_run import HeldRun
from train_core.engine.driver.timeline import PUBLISHED, Timeline
from train_core.engine.metrics.figures import curves_until
from train_core.engine.tracking.delivery.mirror import Mirror
from train_core.results import Report, Tracking
from train_core.stages import PublishArguments
from train_core.storage.records.journal import read_good_segments
from train_core.storage.records.names import CURVES_PNG, REPORT_JSON
from train_core.storage.run_folder import RunFolder


def publish(
    outcome: PublishArguments,
    held: HeldRun,
    folder: RunFolder,
    config: TrainConfig,
    mirror: Mirror | None,
    timeline: Timeline,
) -> Report:
    """Draw the curves, complete the mirror and write report.json.

    Raises FencedError if a newer attempt has the run, StoppedError if it shall end.
    """
    newest = folder.newest()
    assert newest is not None, "a training ends with a checkpoint"
    held.write(CURVES_PNG, curves_until(newest, folder.store))
    timeline.mark_steps(list(read_good_segments(folder.store, newest.manifest.journal)))
    if mirror:
        # A driver before this one may have died before it came to that.
        mirror.log_evaluations(outcome.evaluations, config)
        if outcome.predictions:
            mirror.log_predictions(outcome.predictions)
        decision = outcome.gate.summary if outcome.gate else ""
        told = {"decision": decision, "flow_run": outcome.flow_run}
        mirror.log_outcome(outcome.best, outcome.test_metrics, config, **told)
        if outcome.gate:
            mirror.log_gate(outcome.gate)
        mirror.flush()
    timeline.mark(PUBLISHED)
    report = Report(
        run=folder.name,
        uri=folder.store.uri(REPORT_JSON),
        workload=config.workload,
        train=outcome.train,
        evaluations=outcome.evaluations,
        best=outcome.best,
        test_metrics=outcome.test_metrics,
        predictions=outcome.predictions,
        gate=outcome.gate,
        tracking=mirror.tracking() if mirror else Tracking(),
        seconds=outcome.seconds,
        timeline=timeline.seconds(),
    )
    held.write(REPORT_JSON, (report.model_dump_json(indent=1) + "\n").encode())
    # Stages that were tried again left something, too.
    held.delete_orphans()
    return report
