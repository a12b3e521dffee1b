"""Metrics in MLflow's form: how it calls them, and the requests that carry them."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass

from mlflow.entities import Metric, RunTag

from train_core.tracking.mlflow.passing_client import PassingClient
from train_core.tracking.tracker import Point, Points

MAX_METRICS = 999
"""MLflow accepts 1,000 entities a request, and the position is sent with the metrics."""
_MAX_KEY_LENGTH = 250
_DIGEST_CHARS = 16
_NOT_IN_KEYS = re.compile(r"[^\w\-. :/]")
# A character that MLflow does not take, a part of a path that it does not, and what would read as
# an escaped character.
_ESCAPED = re.compile(
    r"[^\w\-. :/]|^\.\.|(?<![^/])\.{1,2}(?![^/])|(?<![^/])/|/(?=/|$)|_(?=x[0-9A-F]{4})"
)
Naming = Callable[[str], str]
"""How MLflow calls a metric or a parameter: `key_of`, or `earlier_key_of` in an earlier run."""


def send_points(
    client: PassingClient, run_id: str, batches: Iterable[Points], naming: Naming
) -> None:
    """Send an MLflow run points, as many of them in each request as fit.

    The tags of points are not set from the first request on of which MLflow refused a part, so that
    `evertrain mirror` sends it again.
    """
    is_whole = True
    for metrics, tags in _requests(batches, naming):
        then = [RunTag(*tag) for tag in tags.items()] if is_whole else []
        is_whole = client.log_all(run_id, metrics, then) and is_whole


def _requests(
    batches: Iterable[Points], naming: Naming
) -> Iterator[tuple[list[Metric], Mapping[str, str]]]:
    """The metrics of as many batches as fit into one request, and the tags of the last of them.

    There are none where a single batch is cut because it is larger than a request.
    """
    request: list[Metric] = []
    tags: Mapping[str, str] = {}
    for batch in batches:
        metrics = [metric_of(point, naming) for point in batch.points]
        if request and len(request) + len(metrics) > MAX_METRICS:
            yield request, tags
            request = []
        while len(metrics) > MAX_METRICS:
            yield metrics[:MAX_METRICS], {}
            metrics = metrics[MAX_METRICS:]
        request += metrics
        tags = batch.tags
    if request:
        yield request, tags


@dataclass(frozen=True)
class ModelLink:
    """The LoggedModel that metrics are of, and the dataset that they were measured on."""

    model_id: str
    dataset_name: str | None = None
    dataset_digest: str | None = None


def metric_of(point: Point, naming: Naming, link: ModelLink | None = None) -> Metric:
    """The point in MLflow's form.

    Null becomes NaN: a gap would look as if the metric had not been measured. No model gets it, as
    MLflow's databases would give the model 0.
    """
    value = math.nan if point.value is None else point.value
    linked = astuple(link) if link and point.value is not None else ()
    return Metric(naming(point.name), value, round(point.time_s * 1000), point.step, *linked)


def key_of(name: str) -> str:
    """The name as MLflow accepts it: another for every other name.

    What MLflow does not take is escaped as in XML's names, `_x003C_` for `<`. Of a name that is too
    long the beginning is left, with a digest of all of it.
    """
    key = _ESCAPED.sub(lambda found: "".join(f"_x{ord(one):04X}_" for one in found[0]), name)
    if not key or len(key) > _MAX_KEY_LENGTH:
        digest = hashlib.sha256(name.encode()).hexdigest()[:_DIGEST_CHARS]
        return f"{key[: _MAX_KEY_LENGTH - _DIGEST_CHARS - 1]}-{digest}".rstrip("/")
    return key


def earlier_key_of(name: str) -> str:
    """The name as in runs that an earlier version of evertrain began: `_` for other characters."""
    parts = _NOT_IN_KEYS.sub("_", name)[:_MAX_KEY_LENGTH].split("/")
    return "/".join(part for part in parts if part not in ("", ".", "..")) or "_"
