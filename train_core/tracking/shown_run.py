"""A run that is shown in a tracker: what the functions share that show its parts."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from train_core.config import TrainConfig
from train_core.errors import CheckpointError, ConfigError
from train_core.storage.records.run_record import RunRecord
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_reports import read_report
from train_core.text.shown_text import shown as as_text
from train_core.tracking.description.note import Links, Outcome, end_before, note
from train_core.tracking.refusals import Refusals
from train_core.tracking.tracker import DESCRIPTION, GATE_TAG, Known, Stage, Status, Tracker

JOB_TAG, _FLOW_RUN = "evertrain.ray_job", "evertrain.flow_run"
FAILURE_TAG = "evertrain.failure"
"""The first line of why the run failed last; the description begins with it while it is FAILED."""
_OPEN = ("RUNNING", "SCHEDULED")


@dataclass
class ShownRun:
    """A run folder, the tracker that shows it, and what that refused."""

    folder: RunFolder
    record: RunRecord
    tracker: Tracker
    refusals: Refusals
    is_live: bool
    """Whether a driver has the run now; else no stage of it is set to running."""
    config: TrainConfig | None = None
    """Has logins that the run's data may need and that run.json does not record."""
    statuses: dict[Stage, str] = field(default_factory=dict)
    """The statuses of the stages that were opened."""

    def open(self, stage: Stage, *, is_running: bool = False) -> Known:
        """Find or create a stage."""
        known = self.tracker.open(stage, is_running=is_running and self.is_live)
        self.statuses[stage] = known.status
        return known

    def is_open(self, stage: Stage = "pipeline") -> bool:
        """Whether the tracker shows the stage as one that has not ended."""
        return (self.statuses.get(stage) or self.open(stage).status) in _OPEN

    def close(self, stage: Stage, status: Status) -> None:
        """End a stage."""
        with self.refusals.passing(f"the status of {stage}"):
            self.tracker.close(stage, status)
        self.statuses[stage] = status

    def tag(self, stage: Stage, tags: Mapping[str, str]) -> None:
        """Set tags."""
        with self.refusals.passing(f"tags of {stage}"):
            self.tracker.tags(stage, tags)

    def keep_json(self, stage: Stage, path: str, content: Any) -> None:
        """Keep a file of JSON."""
        self.tracker.artifact(stage, path, json.dumps(content, indent=2).encode())

    def keep_figures(
        self, stage: Stage, files: Iterable[tuple[str, bytes]], then: Mapping[str, str]
    ) -> None:
        """Keep figures; set tags that say that all of them are there."""
        refused = self.refusals.count
        for path, content in files:
            self.tracker.artifact(stage, path, content)
        if self.refusals.count == refused:
            self.tracker.tags(stage, then)


def describe(shown: ShownRun) -> None:
    """Write the run's description anew, with the outcome once there is a report."""
    opened, record, folder = shown.open("pipeline"), shown.record, shown.folder
    known, told = opened.tags, _reported(folder)
    decision, flow_run = known.get(GATE_TAG, ""), known.get(_FLOW_RUN, "")
    if told:
        decision, flow_run = told.decision or decision, told.flow_run or flow_run
    link = flow_run or (f"`{record.flow_run}`" if record.flow_run else "")
    newest = folder.newest()
    text = note(
        record,
        newest,
        opened.status,
        told,
        gate=decision,
        cut_off=end_before(folder, newest.name.attempt) if newest else "",
        # It is shown as Markdown, of which an address may hold the end of code.
        folder_url=as_text(folder.url).replace("`", " "),
        links=Links(link, known.get(JOB_TAG, "")),
        failure=known.get(FAILURE_TAG, ""),
    )
    tags = {GATE_TAG: decision, _FLOW_RUN: flow_run, DESCRIPTION: text}
    shown.tag("pipeline", {name: tag for name, tag in tags.items() if tag})


def _reported(folder: RunFolder) -> Outcome | None:
    """The outcome as the run's report has it; None without a report that can be read."""
    with suppress(CheckpointError, ConfigError):
        report = read_report(folder)
        return Outcome.of(folder, report) if report else None
    return None
