"""What MLflow refuses for good: told once, left out, and everything else gets through.

A proxy does not take a file of that size, a person has no right to a registered model, a name is
not allowed: the next request may be answered all the same. `evertrain mirror` tries again what was
left out; until then the run has it in the tag `evertrain.not_shown`.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar, cast

from mlflow import MlflowClient
from mlflow.entities import Metric, Param, RunTag

from train_core.engine.tracking.mlflow_server import (
    Failure,
    failure_of,
    made_client,
    may_take_half,
)

_F = TypeVar("_F", bound=Callable[..., Any])
_Entity = Metric | Param | RunTag
_PATIENCE = 5
"""How often one part may fail, as in an outage, while MLflow answers all else."""
_log = logging.getLogger(__name__)


class Refusals:
    """What MLflow refused of one run, and why."""

    def __init__(self, describe: Callable[[Exception], str] = str) -> None:
        self.are_ids_new = True
        """Whether MLflow was just asked for the ids: else a missing run is asked for again."""
        self.answers: Callable[[], bool] = bool
        """Whether MLflow answers an easy question."""
        self.count = 0
        """How often something was refused, what was told before too."""
        self._describe = describe
        self._told: dict[str, None] = {}
        self._failures: dict[str, int] = {}
        self.parts: set[str] = set()
        """What was refused already, so that nothing large is sent a second time."""

    @property
    def told(self) -> list[str]:
        """What was refused, and why; each once."""
        return list(self._told)

    @contextmanager
    def passing(self, what: str) -> Iterator[None]:
        """Leave out the block's part `what` if MLflow refuses it for good; in an outage, raise."""
        try:
            yield
        except Exception as error:
            if not self.are_final(what, error):
                raise
            self.add(what, error)
        else:
            self._failures.pop(what, None)

    def are_final(self, what: str, error: Exception) -> bool:
        """Whether to go on without `what`: asking again would not help."""
        kind = failure_of(error)
        if kind is Failure.OUTAGE:
            # An upload that a proxy cuts off, or an error of MLflow's own: no outage ends that.
            self._failures[what] = self._failures.get(what, 0) + 1
            return self._failures[what] >= _PATIENCE and self.answers()
        return kind is Failure.REFUSED or (kind is Failure.GONE and self.are_ids_new)

    def add(self, what: str, error: Exception) -> None:
        """Tell that `what` is left out, once."""
        self.count += 1
        self.parts.add(what)
        said = " ".join(self._describe(error).split())[:500]
        told = f"{what}: {type(error).__name__}: {said}"
        if told not in self._told:
            self._told[told] = None
            _log.warning("not shown in MLflow, which does not take it: %s", told)
            _log.debug("where it failed", exc_info=True)


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
            if not self.refusals.are_final(what, error):
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
    """A client as of `mlflow_server.client_of`."""
    return made_client(tracking_uri, lambda: PassingClient(tracking_uri, refusals))


def _shown(entities: Sequence[_Entity]) -> str:
    """The names of what is refused."""
    words = {Metric: "metric", Param: "parameter", RunTag: "tag"}
    names = list(dict.fromkeys(f"{words[type(one)]} {one.key}" for one in entities))
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
