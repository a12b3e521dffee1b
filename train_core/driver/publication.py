"""The end of a pipeline: the curves, report.json, and what MLflow lacks."""

from __future__ import annotations

from train_core.config import TrainConfig
from train_core.driver.held_run import HeldRun
from train_core.driver.timeline import PUBLISHED, Timeline
from train_core.rank.metrics.figures import curves_until
from train_core.results import Report, Tracking
from train_core.stages import PublishArguments
from train_core.storage.records.journal import read_good_segments
from train_core.storage.records.names import CURVES_PNG, REPORT_JSON
from train_core.storage.run_folder import RunFolder
from train_core.tracking.delivery.mirror import Mirror


def publish(
    outcome: PublishArguments,
    held: HeldRun,
    folder: RunFolder,
    config: TrainConfig,
    mirror: Mirror | None,
    timeline: Timeline,
) -> Report:
    """Draw the curves, write report.json and complete the mirror, whose addresses the report has.

    The run is finished with the first report that is written. With a mirror, it is written once
    more with the addresses; a driver that dies between the two leaves one without them.

    Raises FencedError if a newer attempt has the run, StoppedError if it shall end.
    """
    newest = folder.newest()
    assert newest is not None, "a training ends with a checkpoint"
    held.write(CURVES_PNG, curves_until(newest, folder.store))
    timeline.mark_steps(list(read_good_segments(folder.store, newest.manifest.journal)))
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
        flow_run=outcome.flow_run,
        tracking=Tracking(),
        seconds=outcome.seconds,
    )
    # Stages that were tried again left something, too.
    held.delete_orphans()
    report = _written(report, held, timeline)
    if mirror:
        # MLflow shows what the folder tells, so the outcome is in it first.
        mirror.flush()
        shown = report.model_copy(update={"tracking": mirror.tracking()})
        report = _written(shown, held, timeline)
    return report


def _written(report: Report, held: HeldRun, timeline: Timeline) -> Report:
    """The report with the times until now, as it is in the run folder."""
    timeline.mark(PUBLISHED)
    report = report.model_copy(update={"timeline": timeline.seconds()})
    held.write(REPORT_JSON, (report.model_dump_json(indent=1) + "\n").encode())
    return report
