"""MLflow's aliases follow the storage's records, also where an old record cannot be read."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from mlflow import MlflowClient

from tests.client.test_champions import MODEL, Models
from train_core.errors import CheckpointError
from train_core.tracking.mlflow.models.lookups import DIGEST_TAG
from train_core.tracking.mlflow.models.registered import show_aliases


@pytest.fixture
def models(tmp_path: Path) -> Models:
    """Two champions one after the other, and a newer version, of before the log."""
    made = Models(str(tmp_path / "runs"), is_before=True)
    for run in ("first", "second"):
        made.promote(run)
    made.register("waiting")
    return made


@pytest.fixture
def client(models: Models, tracking_uri: str) -> MlflowClient:
    """Of an MLflow that has all versions, and no alias yet."""
    made = MlflowClient(tracking_uri)
    made.create_registered_model(MODEL)
    for version in models.log.read().versions.values():
        tags = {"evertrain.run": version.run, DIGEST_TAG: version.checkpoint_digest}
        made.create_model_version(MODEL, f"file:///{version.run}", tags=tags)
    return made


def aliases(client: MlflowClient) -> dict[str, str]:
    found = client.get_registered_model(MODEL).aliases
    return {alias: str(version) for alias, version in found.items()}


def spoil(models: Models, key: str) -> str:
    models.log.store.write(key, b"x")
    return models.log.store.uri(key)


@pytest.mark.promise("mlflow-registered", "mlflow-champion")
def test_an_old_champion_that_cannot_be_read_is_told_and_stops_no_alias(
    models: Models, client: MlflowClient, caplog: pytest.LogCaptureFixture
) -> None:
    where = spoil(models, "champions/00000001.json")
    assert show_aliases(client, models.log) is None
    assert aliases(client) == {"challenger": "3", "champion": "2"}
    page = client.get_registered_model(MODEL).description
    assert page.startswith("**Version 2 serves** since ")
    assert f"\n- an entry cannot be read: {where}: not a champion's entry" in page
    (told,) = (one for one in caplog.records if one.levelno == logging.WARNING)
    assert where in told.getMessage()


def test_a_newest_version_that_cannot_be_read_stops_the_challengers_alias_only(
    models: Models, client: MlflowClient, caplog: pytest.LogCaptureFixture
) -> None:
    where = spoil(models, "versions/00000003.json")
    assert show_aliases(client, models.log) is None
    assert aliases(client) == {"champion": "2"}
    (told,) = (one for one in caplog.records if one.levelno == logging.WARNING)
    assert told.getMessage().startswith("MLflow's alias 'challenger' stays where it is: ")
    assert where in told.getMessage()


def test_where_the_champion_itself_cannot_be_read_the_alias_stays(
    models: Models, client: MlflowClient
) -> None:
    show_aliases(client, models.log)
    where = spoil(models, "champions/00000002.json")
    with pytest.raises(CheckpointError, match=where):
        show_aliases(client, models.log)
    assert aliases(client)["champion"] == "2"
