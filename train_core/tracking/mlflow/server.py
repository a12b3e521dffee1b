"""An MLflow server, or a database in its place: clients, experiments, and its kinds of errors."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import requests
from filelock import FileLock
from mlflow import MlflowClient
from mlflow.entities import Experiment
from mlflow.exceptions import MlflowException
from sqlalchemy.engine import make_url

from train_core.errors import TrackingError
from train_core.policy.logins import public_uri, without_login_of
from train_core.tracking import refusals
from train_core.tracking.refusals import Failure

_C = TypeVar("_C", bound=MlflowClient)
_KIND = "mlflow.experimentKind"
_MACHINE_LEARNING = "custom_model_development"
"""As MLflow's pages name the view; its Python has no constant for it."""
_NO_CHOICE = ("", "no_inferred_type", "genai_development_inferred")
"""The kinds of experiments for which nobody has chosen a view."""


def contact(tracking_uri: str, experiment: str) -> None:
    """Ask the server for the experiment; nothing is created.

    Raises TrackingError if it refuses, and the client's own error if it is down.
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
            reason = without_login_of(_first_line(error), tracking_uri)
            raise TrackingError(
                f"MLflow at {shown!r} refuses: {reason}. Mend the address or the credentials "
                "(MLFLOW_TRACKING_USERNAME and _PASSWORD, or _TOKEN)."
            ) from error
        raise
    if found is not None and found.lifecycle_stage != "active":
        raise TrackingError(
            f"experiment {experiment!r} was deleted in MLflow at {shown!r}: restore it "
            f"(mlflow experiments restore -x {found.experiment_id}) or name another"
        )


def client_of(tracking_uri: str) -> MlflowClient:
    """A client. A SQLite database that does not exist is created, by one process at a time."""
    return made_client(tracking_uri, lambda: MlflowClient(tracking_uri, tracking_uri))


def made_client(tracking_uri: str, make: Callable[[], _C]) -> _C:
    """The client that `make` makes, as of `client_of`.

    MLflow creates a database in many steps; two processes at once would corrupt it.
    """
    if urlsplit(tracking_uri).scheme != "sqlite":
        return make()
    with FileLock(f"{_database_path(tracking_uri)}.lock"):
        return make()


def existing_client(tracking_uri: str) -> MlflowClient:
    """A client of an MLflow that exists. Raises TrackingError for a missing database."""
    if urlsplit(tracking_uri).scheme == "sqlite" and not _database_path(tracking_uri).exists():
        raise TrackingError(
            f"there is no MLflow database {_database_path(tracking_uri)}: give the address that "
            "the run was mirrored to"
        )
    return client_of(tracking_uri)


def experiment_id(client: MlflowClient, tracking_uri: str, name: str) -> str:
    """The id of the experiment, which is created if there is none of that name.

    MLflow's pages open one without a kind in the view for GenAI: it becomes one of machine
    learning. A kind that somebody chose stays.
    """
    found: Experiment | None = client.get_experiment_by_name(name)
    if found is None:
        location = _artifact_location(tracking_uri)
        try:
            return str(client.create_experiment(name, location, {_KIND: _MACHINE_LEARNING}))
        except MlflowException:
            # Another run may have created it just now.
            found = client.get_experiment_by_name(name)
            if found is None:
                raise
    if found.tags.get(_KIND, "") in _NO_CHOICE:
        client.set_experiment_tag(found.experiment_id, _KIND, _MACHINE_LEARNING)
    return str(found.experiment_id)


def all_pages(search: Callable[..., Any]) -> list[Any]:
    """All that a search of MLflow's finds."""
    found, token = [], None
    while True:
        page = search(page_token=token)
        found += page
        token = page.token
        if not token:
            return found


def failure_of(error: BaseException) -> Failure:
    """The kind of an error that a request to MLflow ended with, or what prepared it."""
    if isinstance(error, MlflowException):
        # MLflow wraps a failed connection, and a page that is no answer of an MLflow server, in
        # the same exception as a server's own failure.
        if isinstance(error.__context__, requests.exceptions.SSLError):
            return Failure.LOGIN
        if "must be in the 'active' state" in str(error):
            return Failure.GONE
        return _of_status(_http_status(error))
    if isinstance(error, requests.HTTPError) and error.response is not None:
        return _of_status(error.response.status_code)
    if isinstance(error, requests.RequestException):
        return Failure.OUTAGE
    return refusals.failure_of(error)


def may_take_half(error: BaseException) -> bool:
    """Whether a refused request may be taken in parts: too large, or one entity of it is wrong."""
    return isinstance(error, MlflowException) and _http_status(error) in (400, 413, 422)


def is_refusal(error: BaseException) -> bool:
    """Whether asking again cannot help: a wrong address, 401, 404, a driver not installed."""
    if isinstance(error, MlflowException):
        return failure_of(error) is not Failure.OUTAGE or "valid JSON" in str(error)
    return isinstance(error, (ImportError, OSError))


def _of_status(status: int) -> Failure:
    if status in (401, 407):
        return Failure.LOGIN
    if status in (404, 410):
        return Failure.GONE
    if 400 <= status < 500 and status not in (408, 425, 429, 499):
        return Failure.REFUSED
    return Failure.OUTAGE


def _http_status(error: MlflowException) -> int:
    # Of a proxy's own answer MLflow keeps the status in the message only.
    said = re.search(r"failed with error code (\d{3}) ", str(error))
    return int(said[1]) if said else int(error.get_http_status_code())


def _prepare_database(tracking_uri: str) -> bool:
    """Create the folder of the SQLite file; return whether the file exists."""
    path = _database_path(tracking_uri)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrackingError(f"MLflow's database {path} cannot be created: {error}") from error
    return path.exists()


def _database_path(tracking_uri: str) -> Path:
    return Path(make_url(tracking_uri).database or "").absolute()


def _artifact_location(tracking_uri: str) -> str | None:
    """The folder beside the database; MLflow's default is the working directory."""
    if urlsplit(tracking_uri).scheme != "sqlite":
        return None
    return (_database_path(tracking_uri).parent / "mlartifacts").as_uri()


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0][:500]
