"""How many workers fit, and when another number of them would be better."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain, repeat
from typing import Any

import pytest

from train_core import TrainConfig
from train_core.cluster import resources, scaling
from train_core.cluster.resources import (
    capacity,
    capacity_beside_ray_data,
    check_resources,
    with_gpus,
)
from train_core.errors import ResourceError, StoppedError
from train_core.timing import ClusterTiming

NODES = [{"CPU": 4.0, "GPU": 2.0}, {"CPU": 1.5}, {"memory": 10.0}]


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        ({}, 5),
        ({"cpus_per_worker": 0.5}, 11),
        ({"cpus_per_worker": 2}, 2),
        ({"cpus_per_worker": 1, "gpus_per_worker": 0.5}, 4),
        ({"cpus_per_worker": 5}, 0),
        ({"placement_strategy": "STRICT_PACK"}, 4),
        ({"placement_strategy": "STRICT_SPREAD"}, 2),
    ],
)
def test_so_many_workers_fit(asked: dict[str, Any], most: int) -> None:
    assert capacity(TrainConfig(**asked), NODES) == most


@pytest.mark.parametrize(
    ("asked", "most"),
    [
        ({}, 4),
        ({"cpus_per_worker": 0.5}, 9),
        # It reads on the second node.
        ({"cpus_per_worker": 4}, 1),
        ({"cpus_per_worker": 0.75}, 6),
        # On the second node, which has no GPU.
        ({"cpus_per_worker": 1, "gpus_per_worker": 0.5}, 4),
        ({"placement_strategy": "STRICT_PACK"}, 4),
        # Each node has a worker, and the first one has room for both.
        ({"placement_strategy": "STRICT_SPREAD"}, 2),
    ],
)
def test_so_many_workers_fit_beside_ray_data(asked: dict[str, Any], most: int) -> None:
    assert capacity_beside_ray_data(TrainConfig(**asked), NODES) == most


@pytest.mark.promise("room-for-ray-data")
def test_ray_data_needs_a_whole_cpu_of_one_node() -> None:
    config = TrainConfig(cpus_per_worker=1)
    assert capacity_beside_ray_data(config, [{"CPU": 1.5}, {"CPU": 1.5}]) == 1
    assert capacity_beside_ray_data(config, [{"CPU": 0.5}]) == 0


def test_nothing_fits_nowhere() -> None:
    assert capacity(TrainConfig(), []) == capacity_beside_ray_data(TrainConfig(), []) == 0
    assert capacity(TrainConfig(placement_strategy="STRICT_PACK"), []) == 0


def test_the_fewest_have_to_fit_and_the_most_need_not() -> None:
    check_resources(elastic_config(1, 1000))
    with pytest.raises(ResourceError, match="999 workers of 1 CPU each cannot be placed"):
        check_resources(elastic_config(999, 1000))


def elastic_config(fewest: int, most: int) -> TrainConfig:
    return TrainConfig(min_workers=fewest, num_workers=most, batch_size=1000)


@pytest.mark.promise("gpus")
@pytest.mark.parametrize(
    ("asked", "each"),
    [
        ({"num_workers": 1}, 1),
        ({"num_workers": 2}, 0),
        ({"num_workers": 2, "min_workers": 1}, 1),
        ({"num_workers": 2, "gpus_per_worker": 0.5}, 0.5),
        ({"num_workers": 1, "gpus_per_worker": 0}, 0),
    ],
)
def test_workers_have_gpus_if_each_of_the_fewest_can_have_one(
    asked: dict[str, Any], each: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resources, "_of_this_machine", lambda: {"CPU": 2.0, "GPU": 1.0})
    assert with_gpus(TrainConfig(**asked)).gpus_per_worker == each


QUICK = ClusterTiming(poll_s=0.01, settle_s=0.05)


def polls(*found: int) -> Callable[[], int]:
    """So many workers can be placed at each poll, and the last number at all further ones."""
    numbers = chain(found, repeat(found[-1]))
    return lambda: next(numbers)


@pytest.mark.promise("elastic")
@pytest.mark.parametrize(("found", "workers"), [((9,), 4), ((0, 1, 4), 4), ((3,), 3), ((1, 3), 3)])
def test_it_begins_with_what_there_is_room_for(found: tuple[int, ...], workers: int) -> None:
    config = elastic_config(2, 4)
    assert scaling.number_of_workers(config, polls(*found), lambda: None, QUICK) == workers


def test_a_wait_for_room_can_be_stopped() -> None:
    looked = []

    def check() -> None:
        looked.append(1)
        if len(looked) == 20:
            raise StoppedError("run", 0)

    with pytest.raises(StoppedError):
        scaling.number_of_workers(elastic_config(2, 4), polls(1), check, QUICK)
