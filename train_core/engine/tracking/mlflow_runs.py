"""One run folder's runs in MLflow: one for the run, with its training, and nested ones for scoring.

They are found by a tag with the digest of run.json. So a run that is continued goes on in the same
MLflow runs, and a new run under an old name or address gets new ones.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from itertools import count
from typing import Literal

from mlflow.entities import LoggedModel, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils import mlflow_tags

from train_core.engine.tracking.description.datasets import dataset_input, dataset_inputs
from train_core.engine.tracking.description.note import Links, Outcome, end_before, note
from train_core.engine.tracking.description.parameters import parameters
from train_core.engine.tracking.existing_mlflow_runs import ID_TAG, STAGE_TAG
from train_core.engine.tracking.mlflow_server import Failure, experiment_id, failure_of
from train_core.engine.tracking.refusals import Refusals, passing_client
from train_core.engine.tracking.send_metrics import (
    MAX_METRICS,
    POSITION_TAG,
    Counters,
    ModelLink,
    Naming,
    Position,
    earlier_key_of,
    key_of,
    metrics_of,
    send_entries,
)
from train_core.errors import CheckpointError, ConfigError
from train_core.policy.end_status import EndStatus
from train_core.storage.records.journal import Entry
from train_core.storage.registered_models.decisions import (
    newest_result,
    question_after_training,
)
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_reports import read_report
from train_core.text.shown_text import shown as as_text
from train_core.text.shown_text import without_secrets

Stage = Literal["pipeline", "train", "evaluate", "infer"]
"""`pipeline` is the parent run; earlier versions of evertrain had the training in a nested one."""
Status = Literal["RUNNING", "SCHEDULED"] | EndStatus
"""SCHEDULED, which MLflow shows with a clock: no process has it, and it goes on later."""

_RUN = "evertrain.run"
_JOB = "evertrain.ray_job"
_FLOW_RUN = "evertrain.flow_run"
_DECISION = "evertrain.gate"
_NAMES, _ESCAPED = "evertrain.names", "escaped"
"""The tag of a run whose metrics and parameters are called as of `key_of`."""
NOT_SHOWN = "evertrain.not_shown"
"""What MLflow refused of the run, and why."""
_INFER_RUN = "evertrain.infer_run"
"""The parameter of the parent with the nested run of batch inferences: the first one counts."""

_FAILURE = "evertrain.failure"
"""The first line of why the run failed last; the description begins with it while it is FAILED."""

_MAX_PARAMS, _MAX_TAG = 100, 5000
_log = logging.getLogger("train_core.tracking")


class MlflowRuns:
    """The MLflow runs of one run folder. The constructor creates what is missing of the parent.

    The stages of a run that is not `is_live` are not set to running again. `job_url` is the page of
    the job that drives the run.
    """

    def __init__(
        self,
        folder: RunFolder,
        tracking_uri: str,
        experiment: str,
        *,
        is_live: bool = True,
        job_url: str = "",
        refusals: Refusals | None = None,
    ) -> None:
        self.is_live = is_live
        self.refusals = refusals or Refusals()
        self.client = passing_client(tracking_uri, self.refusals)
        self.folder = folder
        self.record = folder.record()
        self._id = folder.record_digest()
        self.experiment_id = experiment_id(self.client, tracking_uri, experiment)
        self._ids: dict[Stage, str] = {}
        self._statuses: dict[Stage, str] = {}
        self.naming: Naming = key_of
        self._reached = Position()
        """How much of the journal was sent by this process, what MLflow refused included."""
        self.known_models: dict[str, LoggedModel] | None = None
        """The run's models by their checkpoints' digests, once MLflow was asked."""
        self.training: Stage = "train" if self._find("train") else "pipeline"
        """Whose run has the training: `train` if an earlier version of evertrain began the run."""
        self.run_id("pipeline")
        self.counters = Counters(self.naming)
        self._send_record(job_url)
        self.set_status("pipeline", "RUNNING")
        if is_live:
            self.describe()

    def run_id(self, stage: Stage) -> str:
        """The MLflow run of a stage, found by its tags or created."""
        if stage not in self._ids:
            is_found = self._find(stage)
            if not is_found:
                self._note(stage, self._create(stage))
            if stage == "infer":
                self._agree_on(stage, is_own=not is_found)
        return self._ids[stage]

    def status(self, stage: Stage) -> str:
        """The stage's status in MLflow."""
        self.run_id(stage)
        return self._statuses[stage]

    def set_status(self, stage: Stage, status: Status) -> None:
        """Set the stage's status in MLflow, if it is another one there."""
        if self.status(stage) == status or (status == "RUNNING" and not self.is_live):
            return
        if status in ("RUNNING", "SCHEDULED"):
            self.client.update_run(self.run_id(stage), status)
        else:
            self.client.set_terminated(self.run_id(stage), status)
        self._statuses[stage] = status

    def is_open(self, stage: Stage = "pipeline") -> bool:
        """Whether MLflow shows the stage as one that has not ended."""
        return self.status(stage) in ("RUNNING", "SCHEDULED")

    def end(self, status: EndStatus, why: str = "") -> None:
        """End every stage that still runs, the parent last; `why` says why the run has failed.

        A run whose version waits for a person's answer has not ended: MLflow shows it as SCHEDULED.
        """
        children: tuple[Stage, ...] = ("train", "evaluate", "infer")
        for stage in children:
            if self._statuses.get(stage) == "RUNNING":
                self.set_status(stage, status)
        # A run that is shown afterwards may have its final status in MLflow already.
        if status != EndStatus.FAILED and self._waits():
            self.set_status("pipeline", "SCHEDULED")
        elif self.is_live or status == EndStatus.FINISHED or self.is_open():
            self.set_status("pipeline", status)
        if status == EndStatus.FAILED and why:
            self.set_tags("pipeline", {_FAILURE: without_secrets(as_text(why))[:_MAX_TAG]})
        self.describe()
        self._tell_refusals()

    def _waits(self) -> bool:
        """Whether the run's version waits for a person's answer, as far as it can be read."""
        try:
            question = question_after_training(self.folder, newest_result(self.folder))
        except (CheckpointError, ConfigError) as error:
            # One damaged decision does not keep the run's status from MLflow.
            _log.warning("whether a version of the run waits for approval is not known: %s", error)
            return False
        return question is not None and not question.is_answered

    def describe(self) -> None:
        """Write the run's description anew, with the outcome once there is a report."""
        known = self.client.get_run(self.run_id("pipeline")).data.tags
        decision, flow_run = known.get(_DECISION, ""), known.get(_FLOW_RUN, "")
        told = _reported(self.folder)
        if told:
            decision, flow_run = told.decision or decision, told.flow_run or flow_run
        shown = flow_run or (f"`{self.record.flow_run}`" if self.record.flow_run else "")
        newest = self.folder.newest()
        text = note(
            self.record,
            newest,
            self.status("pipeline"),
            told,
            gate=decision,
            cut_off=end_before(self.folder, newest.name.attempt) if newest else "",
            # MLflow shows it as Markdown, of which an address may hold the end of code.
            folder_url=as_text(self.folder.url).replace("`", " "),
            links=Links(shown, known.get(_JOB, "")),
            failure=known.get(_FAILURE, ""),
        )
        tags = {_DECISION: decision, _FLOW_RUN: flow_run, mlflow_tags.MLFLOW_RUN_NOTE: text}
        self.set_tags("pipeline", {name: tag for name, tag in tags.items() if tag})

    def mirrored(self) -> Position:
        """How much of the journal MLflow has."""
        return max(Position.parse(self.tag(self.training, POSITION_TAG)), self._reached)

    def log_entries(self, entries: Iterable[Entry], after: Position) -> None:
        """Send the journal entries after a position, with `send_metrics.send_entries`.

        The first call's are all of the journal, as its counters are increases.
        """
        run_id = self.run_id(self.training)
        self._reached = send_entries(self.client, run_id, entries, after, self.counters)

    def log_metrics(
        self,
        stage: Stage,
        values: Mapping[str, float | None],
        *,
        step: int,
        time_s: float,
        link: ModelLink | None = None,
    ) -> None:
        """Send metrics of one step, also to the model of `link`. The same again changes nothing."""
        metrics = metrics_of(values, step, time_s, link, naming=self.naming)
        for start in range(0, len(metrics), MAX_METRICS):
            self.client.log_all(self.run_id(stage), metrics[start : start + MAX_METRICS])

    def log_system_metrics(self, values: Mapping[str, float], time_s: float) -> None:
        """Send a sample of the machine's load at a step that no other sample has."""
        # Seconds since the run began: the same when sent again, and growing over attempts.
        step = int(time_s - seconds(self.record.created_at))
        self.log_metrics(self.training, values, step=max(step, 0), time_s=time_s)

    def log_final_values(
        self,
        values: Mapping[str, float | None],
        *,
        step: int,
        time_s: float,
        link: ModelLink | None = None,
    ) -> None:
        """Send values that the run ends with, also to the model of `link`.

        They are at step 0, so that MLflow draws bars: from step 1 on it would draw a curve, of one
        point. If the run was extended and ends with another value, that is at `step`. A value that
        MLflow has is sent as it has it, which adds nothing to the run.
        """
        run_id = self.run_id("pipeline")
        known = self.client.get_run(run_id).data.metrics
        for name, value in values.items():
            at, then_s, key = 0, time_s, self.naming(name)
            if key in known:
                history = self.client.get_metric_history(run_id, key)
                same = [point for point in history if _is_same(point.value, value)]
                at = same[0].step if same else step
                then_s = same[0].timestamp / 1000 if same else time_s
            self.log_metrics("pipeline", {name: value}, step=at, time_s=then_s, link=link)

    def set_tags(self, stage: Stage, tags: Mapping[str, str]) -> None:
        """Set tags of a stage's run."""
        self.client.log_all(self.run_id(stage), [RunTag(*tag) for tag in tags.items()])

    def tag(self, stage: Stage, name: str) -> str:
        """The value of a tag that MLflow has; empty if it has none."""
        return str(self.client.get_run(self.run_id(stage)).data.tags.get(name, ""))

    def log_input(self, stage: Stage, name: str, digest: str, source: str) -> None:
        """Log the data at `source`, with their digest, as an input of the stage."""
        datasets = [dataset_input(stage, name, digest, source)]
        self.client.log_inputs(self.run_id(stage), datasets=datasets)

    def _find(self, stage: Stage) -> bool:
        """Look for the stage's run by its tags; whether there is one."""
        # Neither value needs quoting in a filter: a digest and one of our own words.
        found = self.client.search_runs(
            [self.experiment_id],
            f"tags.`{ID_TAG}` = '{self._id}' and tags.`{STAGE_TAG}` = '{stage}'",
            order_by=["attributes.start_time ASC"],
            max_results=1,
        )
        for run in found:
            self._note(stage, run)
        return bool(found)

    def _note(self, stage: Stage, run: Run) -> None:
        self._ids[stage], self._statuses[stage] = run.info.run_id, run.info.status
        if stage == "pipeline":
            is_new = run.data.tags.get(_NAMES) == _ESCAPED
            self.naming = key_of if is_new else earlier_key_of

    def _create(self, stage: Stage) -> Run:
        tags = {ID_TAG: self._id, _RUN: without_secrets(self.folder.url), STAGE_TAG: stage}
        if stage == "pipeline":
            name = self.folder.name
            tags[_NAMES] = _ESCAPED
        else:
            name = stage
            tags[mlflow_tags.MLFLOW_PARENT_RUN_ID] = self.run_id("pipeline")
        return self.client.create_run(self.experiment_id, tags=tags, run_name=name)

    def _agree_on(self, stage: Stage, *, is_own: bool) -> None:
        """Take the nested run that all processes take which looked for it at once.

        Batch inferences need no lease, and a search followed by a create has no winner. A parameter
        has: MLflow takes its first value only. One whose run was deleted since counts no more.
        """
        chosen, parent = self._ids[stage], self.run_id("pipeline")
        for number in count(1):
            name = _INFER_RUN if number == 1 else f"{_INFER_RUN}.{number}"
            agreed = self.client.get_run(parent).data.params.get(name)
            if agreed is None:
                try:
                    self.client.log_param(parent, name, chosen, synchronous=True)
                    return
                except MlflowException as error:
                    if failure_of(error) is not Failure.REFUSED:
                        raise
                agreed = self.client.get_run(parent).data.params.get(name, chosen)
            if agreed == chosen:
                return
            run = self.client.get_run(agreed)
            if run.info.lifecycle_stage == "active":
                self._note(stage, run)
                if is_own:
                    self.client.delete_run(chosen)
                return

    def _tell_refusals(self) -> None:
        """Say in MLflow what it does not have; a mirror of all of it, afterwards, takes that back.

        A part that was left out of an earlier attempt may still be missing: it stays told.
        """
        if told := "; ".join(self.refusals.told):
            self.set_tags("pipeline", {NOT_SHOWN: told[:_MAX_TAG]})
        elif not self.is_live and self.tag("pipeline", NOT_SHOWN):
            self.client.delete_tag(self.run_id("pipeline"), NOT_SHOWN)

    def _send_record(self, job_url: str) -> None:
        """Send parameters, tags and datasets of run.json. Sending them again changes nothing."""
        commit = self.record.code.get("commit", "")
        tags = {
            "evertrain.workload": self.record.config.workload,
            **{f"fingerprint.{key}": text for key, text in self.record.fingerprint.items()},
            mlflow_tags.MLFLOW_SOURCE_NAME: self.record.config.workload,
            mlflow_tags.MLFLOW_SOURCE_TYPE: "JOB" if job_url else "LOCAL",
            mlflow_tags.MLFLOW_GIT_COMMIT: commit,
            _JOB: job_url,
        }
        self.set_tags("pipeline", {name: text for name, text in tags.items() if text})
        run_id = self.run_id("pipeline")
        params = parameters(self.record, self.naming)
        for start in range(0, len(params), _MAX_PARAMS):
            self.client.log_all(run_id, params[start : start + _MAX_PARAMS])
        self.client.log_inputs(run_id, dataset_inputs(self.record))


def _is_same(shown: float, value: float | None) -> bool:
    return math.isnan(shown) if value is None else shown == value


def _reported(folder: RunFolder) -> Outcome | None:
    """The outcome as the run's report has it; None without a report that can be read."""
    with suppress(CheckpointError, ConfigError):
        report = read_report(folder)
        return Outcome.of(folder, report) if report else None
    return None


def seconds(created_at: str) -> float:
    """An ISO 8601 time as seconds since 1970."""
    return datetime.fromisoformat(created_at).timestamp()
