"""One run folder's runs in MLflow: a parent for the run, nested children for its stages.

They are found by a tag with the digest of run.json. So a run that is continued goes on in the same
MLflow runs, and a new run under an old name or address gets new ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

from mlflow.entities import RunTag
from mlflow.utils import mlflow_tags

from train_core.engine.tracking.client_settings import ONE_QUESTION
from train_core.engine.tracking.description import dataset_input, dataset_inputs, parameters
from train_core.engine.tracking.journal_to_mlflow import MAX_METRICS, Position, batches, metrics_of
from train_core.engine.tracking.server import client_of, existing_client, experiment_id
from train_core.policy.end_status import EndStatus
from train_core.shown_text import shown, without_secrets
from train_core.storage.objects.digests import digest_of
from train_core.storage.records.journal import Entry
from train_core.storage.records.names import RUN_JSON
from train_core.storage.run_folder import RunFolder

Stage = Literal["pipeline", "train", "evaluate", "infer"]
"""`pipeline` is the parent run."""
Status = Literal["RUNNING"] | EndStatus

_ID = "evertrain.id"
_RUN = "evertrain.run"
_STAGE = "evertrain.stage"
_JOB = "evertrain.ray_job"
_MIRRORED = "evertrain.mirrored"

_MAX_PARAMS = 100


class MlflowRuns:
    """The MLflow runs of one run folder. The constructor creates what is missing of the parent.

    The stages of a run that is not `is_live` are not set to running again.
    """

    def __init__(
        self, folder: RunFolder, tracking_uri: str, experiment: str, *, is_live: bool = True
    ) -> None:
        self._is_live = is_live
        self.client = client_of(tracking_uri)
        self.folder = folder
        self.record = folder.record()
        self._id = digest_of(folder.store.read(RUN_JSON))
        self.experiment_id = experiment_id(self.client, tracking_uri, experiment)
        self._ids: dict[Stage, str] = {}
        self._statuses: dict[Stage, str] = {}
        self._describe()
        self.set_status("pipeline", "RUNNING")

    def run_id(self, stage: Stage) -> str:
        """The MLflow run of a stage, found by its tags or created."""
        if stage not in self._ids:
            # Neither value needs quoting in a filter: a digest and one of our own words.
            found = self.client.search_runs(
                [self.experiment_id],
                f"tags.`{_ID}` = '{self._id}' and tags.`{_STAGE}` = '{stage}'",
                order_by=["attributes.start_time ASC"],
                max_results=1,
            )
            run = found[0] if found else self._create(stage)
            self._statuses[stage] = run.info.status
            self._ids[stage] = run.info.run_id
        return self._ids[stage]

    def is_known(self, stage: Stage) -> bool:
        """Whether the stage's run was looked up or created."""
        return stage in self._ids

    def status(self, stage: Stage) -> str:
        """The stage's status in MLflow."""
        self.run_id(stage)
        return self._statuses[stage]

    def set_status(self, stage: Stage, status: Status) -> None:
        """Set the stage's status in MLflow, if it is another one there."""
        if self.status(stage) == status or (status == "RUNNING" and not self._is_live):
            return
        if status == "RUNNING":
            self.client.update_run(self.run_id(stage), status)
        else:
            self.client.set_terminated(self.run_id(stage), status)
        self._statuses[stage] = status

    def end(self, status: EndStatus) -> None:
        """End every stage that still runs, the parent last."""
        children: tuple[Stage, ...] = ("train", "evaluate", "infer")
        for stage in children:
            if self._statuses.get(stage) == "RUNNING":
                self.set_status(stage, status)
        # A run that is shown afterwards may have its final status in MLflow already.
        if self._is_live or status == EndStatus.FINISHED or self.status("pipeline") == "RUNNING":
            self.set_status("pipeline", status)

    def mirrored(self) -> Position:
        """How much of the journal MLflow has."""
        run = self.client.get_run(self.run_id("train"))
        return Position.parse(run.data.tags.get(_MIRRORED, ""))

    def log_entries(self, entries: Iterable[Entry], after: Position) -> None:
        """Send the journal entries after a position, each batch with its new position.

        `entries` are in the journal's order, and have all entries of each step that they contain.
        """
        run_id = self.run_id("train")
        for metrics, position in batches(entries, after):
            tags = [RunTag(_MIRRORED, str(position))] if position is not None else []
            self.client.log_batch(run_id, metrics=metrics, tags=tags)

    def log_metrics(
        self,
        stage: Stage,
        values: Mapping[str, float | None],
        *,
        step: int,
        time_s: float,
        model_id: str | None = None,
    ) -> None:
        """Send metrics of one step. The same call again changes nothing."""
        metrics = metrics_of(values, step, time_s, model_id)
        for start in range(0, len(metrics), MAX_METRICS):
            self.client.log_batch(self.run_id(stage), metrics[start : start + MAX_METRICS])

    def log_system_metrics(self, values: Mapping[str, float], time_s: float) -> None:
        """Send a sample of the machine's load at a step that no other sample has."""
        # Seconds since the run began: the same when sent again, and growing over attempts.
        step = int(time_s - seconds(self.record.created_at))
        self.log_metrics("train", values, step=max(step, 0), time_s=time_s)

    def set_tags(self, stage: Stage, tags: Mapping[str, str]) -> None:
        """Set tags of a stage's run."""
        self.client.log_batch(self.run_id(stage), tags=[RunTag(*tag) for tag in tags.items()])

    def tag(self, stage: Stage, name: str) -> str:
        """The value of a tag that MLflow has; empty if it has none."""
        return str(self.client.get_run(self.run_id(stage)).data.tags.get(name, ""))

    def log_input(self, stage: Stage, name: str, digest: str, source: str) -> None:
        """Log the data at `source`, with their digest, as an input of the stage."""
        datasets = [dataset_input(stage, name, digest, source)]
        self.client.log_inputs(self.run_id(stage), datasets=datasets)

    def link_job(self, url: str) -> None:
        """Link the cluster's page of the job that drives the run."""
        note = f"{self._note()} [Ray's job]({url}) drives it."
        self.set_tags("pipeline", {_JOB: url, mlflow_tags.MLFLOW_RUN_NOTE: note})

    def _note(self) -> str:
        # MLflow shows it as Markdown, of which an address may hold the end of code.
        return f"The run folder is `{shown(self.folder.url).replace('`', ' ')}`."

    def _create(self, stage: Stage) -> Any:
        tags = {_ID: self._id, _RUN: without_secrets(self.folder.url), _STAGE: stage}
        if stage == "pipeline":
            name = self.folder.name
        else:
            name = stage
            tags[mlflow_tags.MLFLOW_PARENT_RUN_ID] = self.run_id("pipeline")
        return self.client.create_run(self.experiment_id, tags=tags, run_name=name)

    def _describe(self) -> None:
        """Send parameters, tags and datasets of run.json. Sending them again changes nothing."""
        tags = {
            "evertrain.workload": self.record.config.workload,
            **{f"fingerprint.{key}": text for key, text in self.record.fingerprint.items()},
            mlflow_tags.MLFLOW_SOURCE_NAME: self.record.config.workload,
            mlflow_tags.MLFLOW_RUN_NOTE: self._note(),
        }
        self.set_tags("pipeline", tags)
        run_id = self.run_id("pipeline")
        params = parameters(self.record)
        for start in range(0, len(params), _MAX_PARAMS):
            self.client.log_batch(run_id, params=params[start : start + _MAX_PARAMS])
        self.client.log_inputs(run_id, dataset_inputs(self.record))


def has_run(folder: RunFolder, tracking_uri: str, experiment: str) -> bool:
    """Whether MLflow has the run of the folder; nothing is created."""
    client = existing_client(tracking_uri)
    found = client.get_experiment_by_name(experiment)
    if found is None:
        return False
    identity = digest_of(folder.store.read(RUN_JSON))
    asked = f"tags.`{_ID}` = '{identity}' and tags.`{_STAGE}` = 'pipeline'"
    return bool(client.search_runs([found.experiment_id], asked, max_results=1))


def delete_runs(run_url: str, tracking_uri: str) -> None:
    """Delete the MLflow runs and models that mirror the run folder at `run_url`.

    Call it while the folder exists: the runs are found by the digest of its run.json.
    """
    ONE_QUESTION.apply()
    client = client_of(tracking_uri)
    identity = digest_of(RunFolder.at(run_url).store.read(RUN_JSON))
    experiments = [experiment.experiment_id for experiment in client.search_experiments()]
    for run in client.search_runs(experiments, f"tags.`{_ID}` = '{identity}'"):
        models = client.search_logged_models(
            [run.info.experiment_id], f"source_run_id = '{run.info.run_id}'"
        )
        for model in models:
            client.delete_logged_model(model.model_id)
        client.delete_run(run.info.run_id)


def seconds(created_at: str) -> float:
    """An ISO 8601 time as seconds since 1970."""
    return datetime.fromisoformat(created_at).timestamp()
