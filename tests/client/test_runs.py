"""What is done to a run by functions, from one program."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.storage.samples import record
from train_core.client.runs import delete_run
from train_core.errors import StageError
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import create_run


def test_a_deletion_that_mlflow_refused_is_tried_again_by_the_same_program(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "night")
    create_run(folder, record("night"))
    with pytest.raises(StageError, match="ftp"):
        delete_run(folder, "ftp://example.org")
    assert folder.exists()
    delete_run(folder)
    assert folder.store.names() == []
