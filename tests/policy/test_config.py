from __future__ import annotations

from train_core.config import TrainConfig


def test_environment_of_workers_is_not_recorded() -> None:
    config = TrainConfig(runtime_env={"env_vars": {"TOKEN": "secret"}, "pip": ["x"]})
    assert config.recorded().runtime_env == {"pip": ["x"]}
    assert config.runtime_env["env_vars"] == {"TOKEN": "secret"}


def test_shards_are_recorded_as_they_were_begun() -> None:
    asked = TrainConfig(num_workers=2)
    assert asked.recorded().num_shards == 2
    assert asked.recorded().differences(TrainConfig(num_workers=1)) == {}
    assert asked.recorded().differences(TrainConfig(seed=1)) == {"seed": (0, 1)}
