"""A Ray cluster that runs already: what it can give decides what is refused and what is used."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from train_core import TrainConfig
from train_core.client.driver_handle import Driver
from train_core.errors import ResourceError
from train_core.requests import DriverRequest
from train_core.storage.run_folder import RunFolder

# The cluster's own look for them is enough.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400), pytest.mark.leaves]


def prepare(storage: Path, **config: Any) -> RunFolder:
    request = DriverRequest(storage=str(storage), run="run", config=TrainConfig(**config))
    with Driver.start(request) as driver:
        driver.prepared()
    return RunFolder(str(storage), "run")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"num_workers": 3, "gpus_per_worker": 0}, "1 node\\(s\\) with 2 CPU, enough for 2"),
        ({"num_workers": 2, "gpus_per_worker": 1}, "with 2 CPU, 1 GPU, enough for 1"),
        ({"num_workers": 2, "placement_strategy": "STRICT_SPREAD"}, "enough for 1"),
    ],
)
def test_what_the_cluster_can_never_give_is_refused_before_there_is_a_run(
    ray_address: str, tmp_path: Path, config: dict[str, Any], told: str
) -> None:
    with pytest.raises(ResourceError, match=told):
        prepare(tmp_path, ray_address=ray_address, **config)
    assert not RunFolder(str(tmp_path), "run").exists()


@pytest.mark.promise("gpus")
@pytest.mark.parametrize(("workers", "gpus"), [(1, 1), (2, 0)])
def test_a_new_run_uses_the_gpus_if_every_worker_can_have_one(
    ray_address: str, tmp_path: Path, workers: int, gpus: float
) -> None:
    folder = prepare(tmp_path, ray_address=ray_address, num_workers=workers)
    assert folder.record().config.gpus_per_worker == gpus


@pytest.mark.timeout(60)
def test_nothing_answers_at_the_address(tmp_path: Path) -> None:
    with pytest.raises(ResourceError, match="no Ray cluster answers at"):
        prepare(tmp_path, ray_address="127.0.0.1:1")
