"""One run folder's runs in MLflow: a parent for the run, nested children for its stages.

They are found again by a tag that holds the digest of run.json, so that a run that is continued
goes on in the same MLflow runs, and a new run under an old name or address begins new ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

import requests
from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import Dataset, DatasetInput, Experiment, InputTag, Param, RunTag
from mlflow.exceptions import MlflowException
from mlflow.utils import mlflow_tags
from sqlalchemy.engine import make_url

from train_core.engine.tracking.metrics import MAX_METRICS, Position, batches, metrics_of, plain_key
from train_core.errors import StorageError, TrackingError
from train_core.storage.objects.digests import digest_of
from train_core.storage.records.journal import Entry
from train_core.storage.records.names import RUN_JSON
from train_core.storage.records.run_record import RunRecord
from train_core.storage.run_folder import RunFolder

Stage = Literal["pipeline", "train", "evaluate", "infer"]
"""`pipeline` is the parent run."""
Status = Literal["RUNNING", "FINISHED", "FAILED", "KILLED"]

_ID = "evertrain.id"
_RUN = "evertrain.run"
_STAGE = "evertrain.stage"
_JOB = "evertrain.ray_job"
_MIRRORED = "evertrain.mirrored"

_MAX_PARAMS = 100
_MAX_PARAM_LENGTH = 6000
_MAX_DIGEST_LENGTH = 36


class MlflowRuns:
    """The MLflow runs of one run folder. Making it creates what is missing of the parent.

    Of a run that is not `is_live`, only shown afterwards, no stage is set to run again.
    """

    def __init__(
        self, folder: RunFolder, tracking_uri: str, experiment: str, *, is_live: bool = True
    ) -> None:
        self._is_live = is_live
        self.client = client_of(tracking_uri)
        self.folder = folder
        self.record = folder.record()
        self._id = digest_of(folder.store.read(RUN_JSON))
        self.experiment_id = _experiment_id(self.client, tracking_uri, experiment)
        self._ids: dict[Stage, str] = {}
        self._statuses: dict[Stage, Status] = {}
        self._describe()
        self.set_status("pipeline", "RUNNING")

    def run_id(self, stage: Stage) -> str:
        """The MLflow run of a stage, found by its tags or created."""
        if stage not in self._ids:
            # Two in a filter need no quoting: a digest and a word of ours.
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

    def status(self, stage: Stage) -> Status:
        """How MLflow says the stage is."""
        self.run_id(stage)
        return self._statuses[stage]

    def set_status(self, stage: Stage, status: Status) -> None:
        """Say how the stage is, if MLflow does not say so yet."""
        if self.status(stage) == status or (status == "RUNNING" and not self._is_live):
            return
        if status == "RUNNING":
            self.client.update_run(self.run_id(stage), status)
        else:
            self.client.set_terminated(self.run_id(stage), status)
        self._statuses[stage] = status

    def end(self, status: Status) -> None:
        """End every stage that still runs, the parent last."""
        children: tuple[Stage, ...] = ("train", "evaluate", "infer")
        for stage in children:
            if self._statuses.get(stage) == "RUNNING":
                self.set_status(stage, status)
        # How a run ended that somebody shows afterwards, MLflow may know better.
        if self._is_live or status == "FINISHED" or self.status("pipeline") == "RUNNING":
            self.set_status("pipeline", status)

    def mirrored(self) -> Position:
        """How much of the journal MLflow has."""
        run = self.client.get_run(self.run_id("train"))
        return Position.parse(run.data.tags.get(_MIRRORED, ""))

    def log_entries(self, entries: Iterable[Entry], after: Position) -> None:
        """Send the journal entries after a position, and with each batch how far they go.

        `entries` are in their order, and all of a step that has any.
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
        # Seconds of the run's life: the same whoever sends it again, and growing over attempts.
        step = int(time_s - seconds(self.record.created_at))
        self.log_metrics("train", values, step=max(step, 0), time_s=time_s)

    def set_tags(self, stage: Stage, tags: Mapping[str, str]) -> None:
        """Set tags of a stage's run."""
        self.client.log_batch(self.run_id(stage), tags=[RunTag(*tag) for tag in tags.items()])

    def tag(self, stage: Stage, name: str) -> str:
        """The value of a tag that MLflow has; empty if it has none."""
        return str(self.client.get_run(self.run_id(stage)).data.tags.get(name, ""))

    def log_input(self, stage: Stage, name: str, digest: str, source: str) -> None:
        """Say that a stage used the data at `source`, which the digest names."""
        dataset = Dataset(
            name=name,
            digest=digest[:_MAX_DIGEST_LENGTH],
            source_type=urlsplit(source).scheme or "local",
            source=json.dumps({"uri": source}),
        )
        tags = [InputTag(mlflow_tags.MLFLOW_DATASET_CONTEXT, stage)]
        self.client.log_inputs(self.run_id(stage), datasets=[DatasetInput(dataset, tags)])

    def link_job(self, url: str) -> None:
        """Show where the cluster shows the job that drives the run, with its logs."""
        note = f"{self._note()} [Ray's job]({url}) drives it."
        self.set_tags("pipeline", {_JOB: url, mlflow_tags.MLFLOW_RUN_NOTE: note})

    def _note(self) -> str:
        return f"The run folder is `{self.folder.url}`."

    def _create(self, stage: Stage) -> Any:
        tags = {_ID: self._id, _RUN: self.folder.url, _STAGE: stage}
        if stage == "pipeline":
            name = self.folder.name
        else:
            name = stage
            tags[mlflow_tags.MLFLOW_PARENT_RUN_ID] = self.run_id("pipeline")
        return self.client.create_run(self.experiment_id, tags=tags, run_name=name)

    def _describe(self) -> None:
        """What run.json says: parameters, tags and datasets. Sent again, it changes nothing."""
        tags = {
            "evertrain.workload": self.record.config.workload,
            **{f"fingerprint.{key}": text for key, text in self.record.fingerprint.items()},
            mlflow_tags.MLFLOW_SOURCE_NAME: self.record.config.workload,
            mlflow_tags.MLFLOW_RUN_NOTE: self._note(),
        }
        self.set_tags("pipeline", tags)
        run_id = self.run_id("pipeline")
        params = [Param(plain_key(key), text) for key, text in _flat_parameters(self.record)]
        for start in range(0, len(params), _MAX_PARAMS):
            self.client.log_batch(run_id, params=params[start : start + _MAX_PARAMS])
        self.client.log_inputs(run_id, _dataset_inputs(self.record))


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

    Call it while the folder exists: its run.json says which runs are meant.
    """
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


def client_of(tracking_uri: str) -> MlflowClient:
    """A client; a SQLite database that is not there is created, by one process at a time.

    MLflow creates it in many steps, and two that do so at once spoil it for good.
    """
    if urlsplit(tracking_uri).scheme != "sqlite":
        return MlflowClient(tracking_uri, tracking_uri)
    with FileLock(f"{_database_path(tracking_uri)}.lock"):
        return MlflowClient(tracking_uri, tracking_uri)


def existing_client(tracking_uri: str) -> MlflowClient:
    """A client of an MLflow that is there. Raises TrackingError for a database that is not."""
    if urlsplit(tracking_uri).scheme == "sqlite" and not _database_path(tracking_uri).exists():
        raise TrackingError(
            f"there is no MLflow database {_database_path(tracking_uri)}: give the address that "
            "the run was mirrored to"
        )
    return client_of(tracking_uri)


def contact(tracking_uri: str, experiment: str) -> None:
    """Ask the server for the experiment; nothing is created.

    Raises TrackingError if it refuses, and whatever the client raises if it is merely down.
    """
    parts = urlsplit(tracking_uri)
    shown = public_uri(tracking_uri)
    if parts.scheme in ("http", "https") and not parts.hostname:
        raise TrackingError(f"MLflow's address {shown!r} names no host: http://host:port")
    try:
        if parts.scheme == "sqlite" and not _prepare_database(tracking_uri):
            return
        found = client_of(tracking_uri).get_experiment_by_name(experiment)
    except (MlflowException, ImportError, OSError) as error:
        if is_refusal(error):
            said = without_login(_first_line(error), tracking_uri)
            raise TrackingError(
                f"MLflow at {shown!r} refuses: {said}. Mend the address or the credentials "
                "(MLFLOW_TRACKING_USERNAME and _PASSWORD, or _TOKEN)."
            ) from error
        raise
    if found is not None and found.lifecycle_stage != "active":
        raise TrackingError(
            f"experiment {experiment!r} was deleted in MLflow at {shown!r}: restore it "
            f"(mlflow experiments restore -x {found.experiment_id}) or name another"
        )


def is_refusal(error: BaseException) -> bool:
    """Whether asking again cannot help: a wrong address, 401, 404, a driver not installed."""
    if isinstance(error, MlflowException):
        # MLflow wraps a failed connection, and a page that is no answer of an MLflow server, in
        # the same exception as a server's own failure.
        if isinstance(error.__context__, requests.exceptions.SSLError):
            return True
        return 400 <= _http_status(error) < 500 or "valid JSON" in str(error)
    return isinstance(error, (ImportError, OSError))


def is_outage(error: Exception) -> bool:
    """Whether the server or the storage may answer the same request later."""
    if isinstance(error, MlflowException):
        return _http_status(error) != 400
    return isinstance(error, (requests.RequestException, StorageError, ConnectionError))


def public_uri(uri: str) -> str:
    """The address without a user's name and password."""
    return without_login(uri, uri)


def without_login(text: str, uri: str) -> str:
    """`text` without the user's name and password that the address holds."""
    login, at, _ = urlsplit(uri).netloc.rpartition("@")
    return text.replace(login + at, "") if at else text


def seconds(created_at: str) -> float:
    """An ISO 8601 time as seconds since 1970."""
    return datetime.fromisoformat(created_at).timestamp()


def _http_status(error: MlflowException) -> int:
    return int(error.get_http_status_code())


def _prepare_database(tracking_uri: str) -> bool:
    """See that the SQLite file can be there; whether it is."""
    path = _database_path(tracking_uri)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrackingError(f"MLflow's database {path} cannot be created: {error}") from error
    return path.exists()


def _database_path(tracking_uri: str) -> Path:
    return Path(make_url(tracking_uri).database or "").absolute()


def _experiment_id(client: MlflowClient, tracking_uri: str, name: str) -> str:
    found: Experiment | None = client.get_experiment_by_name(name)
    if found is None:
        try:
            return str(client.create_experiment(name, _artifact_location(tracking_uri)))
        except MlflowException:
            # Another run may have created it just now.
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    return str(found.experiment_id)


def _artifact_location(tracking_uri: str) -> str | None:
    """Beside the database; MLflow's own choice would be the working directory."""
    if urlsplit(tracking_uri).scheme != "sqlite":
        return None
    return (_database_path(tracking_uri).parent / "mlartifacts").as_uri()


def _flat_parameters(record: RunRecord) -> Iterator[tuple[str, str]]:
    # `runtime_env` may hold environment variables, and those may be secrets.
    asked = record.config.model_dump(mode="json", exclude={"settings", "runtime_env"})
    nested = {"settings": record.config.settings, "pipeline": record.pipeline}
    for prefix, values in nested.items():
        asked |= {f"{prefix}.{key}": value for key, value in values.items()}
    for key, value in asked.items():
        text = value if isinstance(value, str) else json.dumps(value)
        yield key, text[:_MAX_PARAM_LENGTH]


def _dataset_inputs(record: RunRecord) -> Sequence[DatasetInput]:
    name = record.config.workload.rpartition(":")[2]
    source_type, source = _dataset_source(record)
    inputs = []
    for split, found in record.datasets.items():
        # MLflow insists on a digest; without one the number of samples is all that is known.
        digest = found.get("digest") or f"{found.get('samples')}-samples"
        dataset = Dataset(
            name=f"{name}-{split}",
            digest=digest[:_MAX_DIGEST_LENGTH],
            source_type=source_type,
            source=json.dumps(source),
            profile=json.dumps({"num_samples": found.get("samples")}),
        )
        inputs.append(DatasetInput(dataset, [InputTag(mlflow_tags.MLFLOW_DATASET_CONTEXT, split)]))
    return inputs


def _dataset_source(record: RunRecord) -> tuple[str, dict[str, Any]]:
    """Where the data are, by MLflow's words for it: an address, or the code that finds them."""
    urls = {name: one.url for name, one in record.sources.items()}
    if len(urls) == 1:
        (url,) = urls.values()
        return urlsplit(url).scheme or "local", {"uri": url}
    of_code = {"workload": record.config.workload, "settings": record.config.settings}
    return "code", of_code | ({"sources": urls} if urls else {})


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:500]
