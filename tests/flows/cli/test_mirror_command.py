"""A pipeline whose MLflow was down all the time is shown afterwards as if it had been up."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.flows.conftest import RETRAIN, Evertrain
from tests.flows.mlflow_side import at_home, shown_at
from train_core.storage.run_folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

NOBODY_LISTENS = "http://127.0.0.1:9"


def test_what_mlflow_missed_is_mirrored_afterwards(
    undisturbed: str, evertrain: Evertrain, home: Path
) -> None:
    done = evertrain(*RETRAIN, "--run", "unseen", "--tracking-uri", NOBODY_LISTENS)
    assert done.returncode == 0, done.stderr
    refused = evertrain("mirror", "unseen", "--tracking-uri", NOBODY_LISTENS)
    assert refused.returncode == 2
    assert "has not all of run 'unseen'" in refused.stderr
    # The run has the address that never answered.
    tracking_uri = f"sqlite:///{home}/.evertrain/mlflow.db"
    folders = [RunFolder(str(home / ".evertrain/runs"), run) for run in ("undisturbed", "unseen")]
    for _ in range(2):
        done = evertrain("mirror", "unseen", "--json", "--tracking-uri", tracking_uri)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["model_uri"]
        undisturbed_shown, shown = (shown_at(at_home(home), folder.url) for folder in folders)
        assert shown == undisturbed_shown
