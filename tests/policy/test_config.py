from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from train_core.config import TrainConfig, available_cpus
from train_core.config.training_options import InitOptions, StepOptions, WorkloadOptions
from train_core.policy.options import may_change
from train_core.policy.stop_reasons import MonitorOptions


def test_environment_of_workers_is_not_recorded() -> None:
    config = TrainConfig(runtime_env={"env_vars": {"TOKEN": "secret"}, "pip": ["x"]})
    assert config.recorded().runtime_env == {"pip": ["x"]}
    assert config.runtime_env["env_vars"] == {"TOKEN": "secret"}


@pytest.mark.promise("secrets")
@pytest.mark.parametrize(
    "asked",
    [
        {"init_from": "s3://me:hunter2@bucket/run"},
        {"settings": {"data": ["s3://me:hunter2@bucket/data"]}},
        {"train_fn": "a:b", "train_loop_config": {"data": {"url": "s3://me:hunter2@bucket/data"}}},
    ],
)
def test_no_login_is_recorded_whichever_parameter_has_it(asked: dict[str, Any]) -> None:
    told = TrainConfig(**asked).recorded().model_dump_json()
    assert "s3://***@bucket" in told
    assert "hunter2" not in told


def test_shards_are_recorded_as_they_were_begun() -> None:
    asked = TrainConfig(num_workers=2)
    assert asked.recorded().num_shards == 2
    assert asked.recorded().differences(TrainConfig(num_workers=1)) == {}
    assert asked.recorded().differences(TrainConfig(seed=1)) == {"seed": (0, 1)}


@pytest.mark.promise("no-silent-change")
def test_what_decides_the_numbers_or_the_best_checkpoint_may_not_change_in_a_run() -> None:
    groups = (WorkloadOptions, InitOptions, StepOptions, MonitorOptions)
    decide_nothing = {"accept", "rehearse_on", "data_workers"}
    deciding = {name for group in groups for name in group.model_fields} - decide_nothing
    deciding |= {"num_shards", "deterministic", "threads_per_worker", "train_fn", "trainer"}
    changing = {name for name, field in TrainConfig.model_fields.items() if may_change(field)}
    assert deciding & changing == set()
    assert decide_nothing <= changing


@pytest.mark.parametrize("given", [(2, 4), [2, 4], "2,4", "[2, 4]", "(2,4)"])
def test_workers_may_be_a_least_and_a_most(given: Any) -> None:
    config = TrainConfig.model_validate({"num_workers": given})
    assert (config.fewest_workers, config.num_workers, config.shards) == (2, 4, 4)


def test_workers_are_as_many_as_asked_for_else() -> None:
    assert TrainConfig(num_workers=3).fewest_workers == 3


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("1,2,3", "a number or MIN,MAX, got '1,2,3'"),
        ((4, 2), "min_workers is 4, more than num_workers, 2"),
        ("1,x", "num_workers"),
    ],
)
def test_a_range_that_is_none_is_refused(given: Any, told: str) -> None:
    with pytest.raises(ValidationError, match=told):
        TrainConfig.model_validate({"num_workers": given})


@pytest.mark.parametrize("name", ["epochs", "seed", "grace_s", "gpus_per_worker", "monitor"])
def test_a_truth_value_is_no_number(name: str) -> None:
    with pytest.raises(ValidationError, match="True is a bool"):
        TrainConfig.model_validate({name: True})
    assert TrainConfig(strict=True).strict


@pytest.mark.parametrize(
    ("files", "is_limited"),
    [
        ({}, False),
        ({"cpu.max": "max 100000\n"}, False),
        ({"cpu.max": "100000 100000\n"}, True),
        # Ray rounds down, and would have no CPU at all of a half.
        ({"cpu.max": "190000 100000\n"}, True),
        ({"cpu.max": "50000 100000\n"}, True),
        ({"cpu.max": "unreadable"}, False),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, False),
        ({"cpu/cpu.cfs_quota_us": "100000\n", "cpu/cpu.cfs_period_us": "100000\n"}, True),
        ({"cpu/cpu.cfs_quota_us": "100000\n"}, False),
    ],
)
def test_a_containers_quota_limits_the_cpus_as_it_does_for_ray(
    tmp_path: Path, files: dict[str, str], is_limited: bool
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    without = available_cpus(tmp_path / "none")
    assert available_cpus(tmp_path) == (1 if is_limited else without)
