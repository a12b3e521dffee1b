"""A client of MLflow's that leaves out what is refused for good: `refusals.py`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from train_core.tracking.mlflow.server import made_client, may_take_half
from train_core.tracking.refusals import Refusals

_F = TypeVar("_F", bound=Callable[..., Any])
_Entity = Metric | Param | RunTag
_PATIENCE = 5
"""How many points of one curve may be refused before the others of it are not tried."""


def _passed(method: _F, what: Callable[..., str]) -> _F:
    @wraps(method)
    def call(self: PassingClient, *args: Any, **kwargs: Any) -> Any:
        answer = None
        with self.refusals.passing(what(*args)):
            answer = method(self, *args, **kwargs)
        return answer  # noqa: RET504 (the block may end without a value)

    return cast(_F, call)


def _artifact(_run: str, local: str, folder: str | None = None) -> str:
    return f"artifact {folder}/{Path(local).name}" if folder else f"artifact {Path(local).name}"


def _of_version(name: str, version: object, *_: object) -> str:
    return f"version {version} of registered model {name!r}"


def _of_model(name: str, *_: object) -> str:
    return f"registered model {name!r}"


class PassingClient(MlflowClient):
    """A client of which a write that MLflow refuses for good does not end what comes after it.

    What gives an answer that is needed (an id, a page of a search) raises as ever.
    """

    def __init__(self, tracking_uri: str, refusals: Refusals) -> None:
        super().__init__(tracking_uri, tracking_uri)
        self.refusals = refusals
        self._refused_points: Counter[str] = Counter()
        refusals.answers = self._answers

    # Texts, figures and dictionaries go this way, too.
    log_artifact = _passed(MlflowClient.log_artifact, _artifact)
    log_inputs = _passed(MlflowClient.log_inputs, lambda *_: "the datasets")
    update_run = _passed(MlflowClient.update_run, lambda run, *_: f"the status of {run}")
    set_terminated = _passed(MlflowClient.set_terminated, lambda run, *_: f"the status of {run}")
    set_experiment_tag = _passed(
        MlflowClient.set_experiment_tag, lambda _, name, *__: f"the experiment's tag {name}"
    )
    delete_logged_model = _passed(
        MlflowClient.delete_logged_model, lambda model: f"that model {model} is deleted"
    )
    set_model_version_tag = _passed(MlflowClient.set_model_version_tag, _of_version)
    update_model_version = _passed(MlflowClient.update_model_version, _of_version)
    update_registered_model = _passed(MlflowClient.update_registered_model, _of_model)
    set_registered_model_tag = _passed(MlflowClient.set_registered_model_tag, _of_model)
    set_registered_model_alias = _passed(
        MlflowClient.set_registered_model_alias,
        lambda name, alias, _: f"alias {alias!r} of registered model {name!r}",
    )

    def log_all(
        self, run_id: str, entities: Sequence[_Entity], then: Sequence[RunTag] = ()
    ) -> bool:
        """Log what one request takes; whether MLflow has all of it.

        A request that is too large, or of which one entity is refused, is made in halves. `then`
        are tags that say that all of it is there: they are left out if it is not.
        """
        left = [one for one in entities if not self._is_hopeless(one)]
        if len(left) < len(entities):
            self.log_all(run_id, left)
            return False
        try:
            self._log_batch(run_id, [*entities, *then])
        except Exception as error:
            what = _shown(entities) if entities else _shown(then)
            if not self.refusals.is_final(what, error):
                raise
            if len(entities) > 1 and may_take_half(error):
                half = len(entities) // 2
                parts = entities[:half], entities[half:]
                taken = [self.log_all(run_id, part) for part in parts]
                return all(taken) and (not then or self.log_all(run_id, then))
            self.refusals.add(what, error)
            self._refused_points.update(one.key for one in entities if isinstance(one, Metric))
            return False
        return True

    def _is_hopeless(self, entity: _Entity) -> bool:
        """Whether it is of a curve of which so many points were refused already."""
        return isinstance(entity, Metric) and self._refused_points[entity.key] >= _PATIENCE

    def _log_batch(self, run_id: str, entities: Sequence[_Entity]) -> None:
        self.log_batch(
            run_id,
            metrics=[one for one in entities if isinstance(one, Metric)],
            params=[one for one in entities if isinstance(one, Param)],
            tags=[one for one in entities if isinstance(one, RunTag)],
        )

    def _answers(self) -> bool:
        try:
            self.search_experiments(max_results=1)
        except Exception:  # noqa: BLE001 (whatever it is, this is no answer)
            return False
        return True


def passing_client(tracking_uri: str, refusals: Refusals) -> PassingClient:
    """A client as of `server.client_of`."""
    return made_client(tracking_uri, lambda: PassingClient(tracking_uri, refusals))


def _shown(entities: Sequence[_Entity]) -> str:
    """The names of what is refused."""
    words = {Metric: "metric", Param: "parameter", RunTag: "tag"}
    names = list(dict.fromkeys(f"{words[type(one)]} {one.key}" for one in entities))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
