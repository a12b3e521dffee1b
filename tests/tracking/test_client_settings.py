"""MLflow's client behaves as its caller chose, unless the user's environment says it."""

from __future__ import annotations

import os

import pytest

from train_core.tracking.mlflow.client_settings import ONE_QUESTION, REPEATED_BY_CALLER

RETRIES, TIMEOUT = "MLFLOW_HTTP_REQUEST_MAX_RETRIES", "MLFLOW_HTTP_REQUEST_TIMEOUT"


@pytest.fixture(autouse=True)
def nothing_applied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("train_core.tracking.mlflow.client_settings._applied", {})
    for name in (RETRIES, TIMEOUT):
        # Set first: what a test applies is taken away afterwards.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


def test_the_settings_applied_last_hold() -> None:
    REPEATED_BY_CALLER.apply()
    assert (os.environ[RETRIES], os.environ[TIMEOUT]) == ("0", "30")
    ONE_QUESTION.apply()
    assert (os.environ[RETRIES], os.environ[TIMEOUT]) == ("1", "30")


@pytest.mark.parametrize("value", ["0", "5"])
def test_what_the_users_environment_says_stays(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(RETRIES, value)
    ONE_QUESTION.apply()
    REPEATED_BY_CALLER.apply()
    assert (os.environ[RETRIES], os.environ[TIMEOUT]) == (value, "30")
