"""The address of MLflow's page with the runs, found without MLflow, which loads slowly."""

from __future__ import annotations

import urllib.request
from contextlib import suppress
from http.client import HTTPException
from urllib.parse import urlencode

from evertrain_flows.timing import TIMING
from train_core.config.json_text import parse_object
from train_core.policy.logins import public_uri
from train_core.policy.mlflow_pages import experiment_page, list_of_experiments
from train_core.requests import DEFAULT_EXPERIMENT

_MAX_BYTES = 2**20


def page_of_runs(address: str) -> str:
    """The address of the page of the default experiment, on the MLflow server at `address`.

    It is that of the list of experiments if the server does not name that experiment: because no
    run is mirrored yet, or because it asks for a login.
    """
    query = urlencode({"experiment_name": DEFAULT_EXPERIMENT})
    asked = f"{public_uri(address).rstrip('/')}/api/2.0/mlflow/experiments/get-by-name?{query}"
    with suppress(OSError, HTTPException, ValueError, KeyError, TypeError):
        # An address that `evertrain ui` does not start a server for begins with http.
        with urllib.request.urlopen(asked, timeout=TIMING.mlflow_answer_s) as answer:  # noqa: S310
            found = parse_object(answer.read(_MAX_BYTES).decode())
        return experiment_page(address, str(int(found["experiment"]["experiment_id"])))
    return list_of_experiments(address)
