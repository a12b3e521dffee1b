"""A search whose runs are on an object store."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from train_core.tune import TuneCheckpoint

pytest.importorskip("ray.tune")


@pytest.mark.s3
@pytest.mark.timeout(300)
@pytest.mark.promise("tune-trials")
def test_a_trials_run_may_be_on_an_object_store(
    object_store: str, search: Callable[..., Any]
) -> None:
    storage = f"{object_store}/{uuid.uuid4().hex}"
    (result,) = search({"settings.score": 1}, epochs=2, storage=storage)
    assert result.error is None
    assert result.metrics["training_iteration"] == 2
    assert result.metrics["evertrain/run"].startswith(storage)
    checkpoint = TuneCheckpoint.of(result.checkpoint).checkpoint()
    assert checkpoint.uri.startswith(storage)
    with checkpoint.as_directory() as own, result.checkpoint.as_directory() as copied:
        name = "model.safetensors"
        with open(f"{copied}/{name}", "rb") as file:
            assert file.read() == (own / name).read_bytes()
