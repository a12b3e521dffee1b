"""MLflow as a tracker."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from mlflow.entities import Dataset, DatasetInput, InputTag, Param
from mlflow.utils import mlflow_tags

from train_core.champion.log import ModelLog
from train_core.policy.logins import public_uri
from train_core.policy.metric_names import BEST
from train_core.policy.mlflow_pages import run_page
from train_core.results import GateResult, Tracking
from train_core.tracking.mlflow import server
from train_core.tracking.mlflow.models.kept import delete_gone, lacking, link_of, model_of
from train_core.tracking.mlflow.models.registered import register
from train_core.tracking.mlflow.runs import MlflowRuns
from train_core.tracking.mlflow.send_metrics import send_points
from train_core.tracking.refusals import Failure, Refusals
from train_core.tracking.tracker import (
    DESCRIPTION,
    Data,
    Known,
    Measured,
    ModelFiles,
    Points,
    Stage,
    Status,
    TrackedModel,
    TrackedRun,
)

_MAX_PARAMS = 100


class MlflowTracker:
    """Shows one run in an MLflow experiment. The constructor finds the run there, or creates it."""

    def __init__(
        self, uri: str, experiment: str, run: TrackedRun, refusals: Refusals | None = None
    ) -> None:
        self.runs = MlflowRuns(
            uri, experiment, run, refusals or Refusals(failure_of=self.failure_of)
        )
        self._uri = public_uri(uri).rstrip("/")
        self._run = run

    @staticmethod
    def contact(uri: str, experiment: str) -> None:
        """Ask MLflow for the experiment. Raises as `server.contact`."""
        server.contact(uri, experiment)

    @staticmethod
    def failure_of(error: BaseException) -> Failure:
        """The kind of an error of MLflow's client."""
        return server.failure_of(error)

    @property
    def place(self) -> Tracking:
        """Where MLflow shows the run."""
        run_id, experiment_id = self.runs.run_id("pipeline"), self.runs.experiment_id
        page = run_page(self._uri, experiment_id, run_id)
        return Tracking(
            tracking_uri=self._uri,
            experiment_id=experiment_id,
            run_id=run_id,
            url=page if self._uri.startswith("http") else "",
        )

    def open(self, stage: Stage, *, is_running: bool = False) -> Known:
        """Find or create the stage's MLflow run."""
        stage = self._stage(stage)
        if is_running:
            self.runs.set_status(stage, "RUNNING")
        return Known(self.runs.tags_of(stage), self.runs.status(stage))

    def parameters(
        self, stage: Stage, values: Mapping[str, str], data: Sequence[Data] = ()
    ) -> None:
        """Log parameters and datasets, and of the run itself where it comes from."""
        run_id = self.runs.run_id(self._stage(stage))
        if stage == "pipeline":
            source = {
                mlflow_tags.MLFLOW_SOURCE_NAME: self._run.workload,
                mlflow_tags.MLFLOW_GIT_COMMIT: self._run.commit,
            }
            # Who shows the run afterwards does not know where it ran.
            if self._run.job_url or mlflow_tags.MLFLOW_SOURCE_TYPE not in self.runs.tags_of(stage):
                kind = "JOB" if self._run.job_url else "LOCAL"
                source[mlflow_tags.MLFLOW_SOURCE_TYPE] = kind
            self.runs.set_tags(stage, {name: text for name, text in source.items() if text})
        params = [Param(self.runs.naming(name), text) for name, text in values.items()]
        for start in range(0, len(params), _MAX_PARAMS):
            self.runs.client.log_all(run_id, params[start : start + _MAX_PARAMS])
        if data:
            self.runs.client.log_inputs(run_id, datasets=[self._input(one) for one in data])

    def metrics(
        self,
        stage: Stage,
        batches: Iterable[Points],
        of: Measured | None = None,
        *,
        is_final: bool = False,
    ) -> None:
        """Log metrics; what the run ends with, so that MLflow draws bars."""
        # An earlier version of evertrain had the training in a nested run, and curves elsewhere.
        is_earlier = self.runs.training == "train"
        link = link_of(self.runs, of) if of else None
        if is_final and not is_earlier:
            for batch in batches:
                self.runs.log_final_points(batch.points, link)
        elif is_final or of:
            for batch in batches:
                points = [
                    replace(one, name=one.name.removeprefix(f"{BEST}/")) for one in batch.points
                ]
                new, of_deleted = lacking(self.runs, of, points)
                self.runs.log_points(stage, new, link)
                # The model keeps what a run gave it that somebody has deleted.
                self.runs.log_points(stage, of_deleted)
                if of:
                    self.runs.measured.update((of.model, one.name) for one in points)
        else:
            run_id = self.runs.run_id(self._stage(stage))
            send_points(self.runs.client, run_id, batches, self.runs.naming)

    def artifact(self, stage: Stage, path: str, content: bytes) -> None:
        """Log a file."""
        folder, _, name = path.rpartition("/")
        with tempfile.TemporaryDirectory() as local:
            file = Path(local, name)
            file.write_bytes(content)
            run_id = self.runs.run_id(self._stage(stage))
            self.runs.client.log_artifact(run_id, str(file), folder or None)

    def model(self, model: TrackedModel, files: ModelFiles | None = None) -> str:
        """Log a model that refers to its checkpoint; with `files`, one that MLflow serves."""
        if files:
            # Imported late: it loads torch, and what MLflow has for models.
            from train_core.tracking.mlflow.models.logged import copy_files

            return copy_files(self.runs, model, files)
        return f"models:/{model_of(self.runs, model).model_id}"

    def retain_models(self, kept: Sequence[str], is_there: Callable[[str], bool]) -> None:
        """Delete the other models, unless a registered version points to them."""
        delete_gone(self.runs, kept, is_there)

    def version(self, result: GateResult, log: ModelLog, logged: Callable[[], str]) -> None:
        """Register a version in MLflow's registry of models."""
        register(self.runs, result, log, logged)

    def tags(self, stage: Stage, tags: Mapping[str, str]) -> None:
        """Set tags, or delete those without a value."""
        stage = self._stage(stage)
        named = {
            mlflow_tags.MLFLOW_RUN_NOTE if name == DESCRIPTION else name: text
            for name, text in tags.items()
        }
        self.runs.set_tags(stage, {name: text for name, text in named.items() if text})
        for name in (name for name, text in named.items() if not text):
            self.runs.client.delete_tag(self.runs.run_id(stage), name)

    def close(self, stage: Stage, status: Status) -> None:
        """Set the status of the stage's MLflow run; a training ends with its run."""
        if stage != "train" or self.runs.training == "train":
            self.runs.set_status(stage, status)

    def _stage(self, stage: Stage) -> Stage:
        """The stage whose MLflow run shows this one."""
        return self.runs.training if stage == "train" else stage

    def _input(self, data: Data) -> DatasetInput:
        dataset = Dataset(
            name=data.name,
            digest=self.runs.digest_of(data),
            source_type=data.source_type,
            source=json.dumps(data.source),
            profile=None if data.profile is None else json.dumps(data.profile),
        )
        return DatasetInput(dataset, [InputTag(mlflow_tags.MLFLOW_DATASET_CONTEXT, data.context)])
