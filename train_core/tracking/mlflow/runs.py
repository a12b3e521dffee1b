"""One run's runs in MLflow: one for it, with its training, and nested ones for scoring.

They are found by a tag with the digest of run.json. So a run that is continued goes on in the same
MLflow runs, and a new run under an old name or address gets new ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count

from mlflow.entities import LoggedModel, Run, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils import mlflow_tags

from train_core.text.shown_text import without_secrets
from train_core.tracking.mlflow.existing_runs import ID_TAG, STAGE_TAG
from train_core.tracking.mlflow.passing_client import passing_client
from train_core.tracking.mlflow.search_runs import search_tags
from train_core.tracking.mlflow.send_metrics import (
    MAX_METRICS,
    ModelLink,
    Naming,
    earlier_key_of,
    key_of,
    metric_of,
)
from train_core.tracking.mlflow.server import experiment_id, failure_of
from train_core.tracking.refusals import Failure, Refusals
from train_core.tracking.tracker import Data, Point, Stage, Status, TrackedRun

_RUN = "evertrain.run"
_NAMES, _ESCAPED = "evertrain.names", "escaped"
"""The tag of a run whose metrics and parameters are called as of `key_of`."""
_INFER_RUN = "evertrain.infer_run"
"""The parameter of the parent with the nested run of batch inferences: the first one counts."""
_MAX_DIGEST_LENGTH = 36


class MlflowRuns:
    """The MLflow runs of one run. The constructor finds the parent, or creates it."""

    def __init__(
        self, tracking_uri: str, experiment: str, run: TrackedRun, refusals: Refusals
    ) -> None:
        self.refusals = refusals
        self.client = passing_client(tracking_uri, refusals)
        self.run = run
        self.experiment_id = experiment_id(self.client, tracking_uri, experiment)
        self._ids: dict[Stage, str] = {}
        self._statuses: dict[Stage, str] = {}
        self.naming: Naming = key_of
        self.known_models: dict[str, LoggedModel] | None = None
        """The run's models by their checkpoints' digests, once MLflow was asked."""
        self.measured: set[tuple[str, str]] = set()
        """The digests of models, with the names of metrics that this process gave them."""
        self.training: Stage = "train" if self._find("train") else "pipeline"
        """Whose run has the training: `train` if an earlier version of evertrain began the run."""
        self.run_id("pipeline")

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
        if self.status(stage) == status:
            return
        if status in ("RUNNING", "SCHEDULED"):
            self.client.update_run(self.run_id(stage), status)
        else:
            if stage == "pipeline" and self.run.search:
                # By now all trials that began at once agree on one.
                found = search_tags(self.client, self.experiment_id, self.run.search)
                self.set_tags(stage, found)
            self.client.set_terminated(self.run_id(stage), status)
        self._statuses[stage] = status

    def log_points(
        self, stage: Stage, points: Sequence[Point], link: ModelLink | None = None
    ) -> None:
        """Send points, also to the model of `link`. The same again changes nothing."""
        metrics = [metric_of(point, self.naming, link) for point in points]
        for start in range(0, len(metrics), MAX_METRICS):
            self.client.log_all(self.run_id(stage), metrics[start : start + MAX_METRICS])

    def log_final_points(self, points: Sequence[Point], link: ModelLink | None = None) -> None:
        """Send values that the run ends with, also to the model of `link`.

        They are at step 0, so that MLflow draws bars: from step 1 on it would draw a curve, of one
        point. If the run was extended and ends with another value, that is at its own step. A value
        that MLflow has is sent as it has it, which adds nothing to the run.
        """
        run_id = self.run_id("pipeline")
        known = self.client.get_run(run_id).data.metrics
        for point in points:
            key, found = self.naming(point.name), replace(point, step=0)
            if key in known:
                history = self.client.get_metric_history(run_id, key)
                same = [one for one in history if _is_same(one.value, point.value)]
                found = point
                if same:
                    found = replace(point, step=same[0].step, time_s=same[0].timestamp / 1000)
            self.log_points("pipeline", [found], link)

    def digest_of(self, data: Data) -> str:
        """The digest of data as MLflow takes it."""
        return data.digest[:_MAX_DIGEST_LENGTH]

    def set_tags(self, stage: Stage, tags: Mapping[str, str]) -> None:
        """Set tags of a stage's run."""
        self.client.log_all(self.run_id(stage), [RunTag(*tag) for tag in tags.items()])

    def tags_of(self, stage: Stage) -> Mapping[str, str]:
        """The tags that MLflow has of a stage's run."""
        return dict(self.client.get_run(self.run_id(stage)).data.tags)

    def _find(self, stage: Stage) -> bool:
        """Look for the stage's run by its tags; whether there is one."""
        # Neither value needs quoting in a filter: a digest and one of our own words.
        found = self.client.search_runs(
            [self.experiment_id],
            f"tags.`{ID_TAG}` = '{self.run.id}' and tags.`{STAGE_TAG}` = '{stage}'",
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
        tags = {ID_TAG: self.run.id, _RUN: without_secrets(self.run.url), STAGE_TAG: stage}
        if stage == "pipeline":
            name = self.run.name
            tags[_NAMES] = _ESCAPED
            if self.run.search:
                tags |= search_tags(self.client, self.experiment_id, self.run.search)
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


def _is_same(shown: float, value: float | None) -> bool:
    return math.isnan(shown) if value is None else shown == value
