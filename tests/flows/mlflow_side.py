"""What MLflow's pages show of a pipeline."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

from mlflow import MlflowClient
from mlflow.entities import Run
from mlflow.store.model_registry.sqlalchemy_store import SqlAlchemyStore as RegistryStore
from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore


def at_home(home: Path) -> str:
    """Where MLflow is for the commands of a home."""
    return f"sqlite:///{home}/.evertrain/mlflow.db"


def close_databases() -> None:
    """Close those that MLflow keeps open for the process."""
    for store in (SqlAlchemyStore, RegistryStore):
        for engine in store._engine_map.values():
            engine.dispose()


_ONE_AT_A_TIME = Lock()


@contextmanager
def mlflow_client(uri: str) -> Iterator[MlflowClient]:
    """A client of the MLflow at `uri`."""
    with _ONE_AT_A_TIME:
        yield MlflowClient(uri, uri)
        close_databases()


def runs_in(uri: str, url: str) -> list[Run]:
    """All runs of the pipeline whose run folder is at `url`, those of its stages included."""
    with mlflow_client(uri) as client:
        experiments = [e.experiment_id for e in client.search_experiments()]
        return list(client.search_runs(experiments, f"tags.`evertrain.run` = '{url}'"))


def shown_at(uri: str, url: str) -> dict[str, Any]:
    """Each stage's status and metrics by step, without those of the machine."""
    shown: dict[str, Any] = {}
    runs = runs_in(uri, url)
    with mlflow_client(uri) as client:
        for run in runs:
            stage = run.data.tags["evertrain.stage"]
            assert stage not in shown, f"two runs of the stage {stage}"
            history = {
                key: client.get_metric_history(run.info.run_id, key)
                for key in run.data.metrics
                if not key.startswith(("system/", "checkpoint/")) and "_per_s" not in key
            }
            shown[stage] = {
                "status": run.info.status,
                # MLflow orders points by their time, and checkpoints that are evaluated at once
                # end in any order.
                "metrics": {
                    k: sorted((p.step, p.value) for p in points) for k, points in history.items()
                },
            }
    return shown
