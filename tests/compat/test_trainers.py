"""Factories: what is refused of them, and what their trainer says in place of parameters."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.train import CheckpointConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from tests.compat.functions.reference_functions import keep_best, keep_most_recent
from train_core import TrainConfig
from train_core.errors import UserCodeError, WorkloadError
from train_core.functions.trainer_settings import with_trainers_settings


def train_nothing(config: dict[str, Any]) -> None:
    """Trains nothing."""


def needs_arguments(lr: float, *, epochs: int, width: int = 3) -> TorchTrainer:
    return TorchTrainer(train_nothing, train_loop_config={"lr": lr, "epochs": epochs, "w": width})


def calls_fit() -> Any:
    return TorchTrainer(train_nothing).fit()


def raises() -> TorchTrainer:
    raise KeyError("no such file")


def says_nothing() -> TorchTrainer:
    return TorchTrainer(train_nothing)


def says_all() -> TorchTrainer:
    return TorchTrainer(
        train_nothing,
        scaling_config=ScalingConfig(
            num_workers=2, resources_per_worker={"CPU": 0.5}, placement_strategy="SPREAD"
        ),
        run_config=RunConfig(
            checkpoint_config=CheckpointConfig(
                num_to_keep=3, checkpoint_score_attribute="loss", checkpoint_score_order="min"
            )
        ),
    )


def keeps_most_recent() -> TorchTrainer:
    return TorchTrainer(train_nothing, run_config=keep_most_recent())


def keeps_best() -> TorchTrainer:
    return TorchTrainer(train_nothing, run_config=keep_best())


def settings_of(factory: str, recorded: TrainConfig | None = None, **asked: Any) -> TrainConfig:
    config = TrainConfig(trainer=f"{__name__}:{factory}", **asked)
    return with_trainers_settings(config, recorded)


@pytest.mark.promise("one-line-refusal")
def test_a_factory_that_needs_arguments_is_refused_with_their_names() -> None:
    with pytest.raises(WorkloadError) as raised:
        settings_of("needs_arguments")
    assert str(raised.value) == (
        f"trainer {__name__}:needs_arguments needs lr, epochs: evertrain calls it without "
        "arguments. Give them defaults, or name a function that calls it with them"
    )


def test_an_error_of_the_factory_is_its_own_and_has_its_traceback() -> None:
    with pytest.raises(UserCodeError, match="raises: KeyError: 'no such file'") as raised:
        settings_of("raises")
    assert "in raises" in raised.value.traceback


def test_a_factory_that_trains_is_refused_before_it_does() -> None:
    fit = TorchTrainer.fit
    with pytest.raises(
        WorkloadError, match=r"calls_fit calls \.fit\(\), but evertrain runs"
    ) as told:
        settings_of("calls_fit")
    assert "the trainer itself: let it return the trainer, and call .fit() on what" in str(
        told.value
    )
    assert TorchTrainer.fit is fit


SCRIPT = """
from ray.train import ScalingConfig
from ray.train.torch import TorchTrainer

from pathlib import Path


def train_func(config):
    pass


def predictor(folder):
    return str


Path(__file__).with_suffix(".imported").touch()
trainer = TorchTrainer(train_func, scaling_config=ScalingConfig(num_workers=1))
result = trainer.fit()
"""


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Path]:
    """A script that trains whenever it is imported."""
    path = tmp_path / "script_that_fits.py"
    path.write_text(SCRIPT)
    sys.path.insert(0, str(tmp_path))
    yield path
    sys.path.remove(str(tmp_path))
    sys.modules.pop(path.stem, None)


@pytest.mark.promise("one-line-refusal")
@pytest.mark.parametrize(
    "given",
    [
        {"train_fn": "script_that_fits:train_func"},
        {"trainer": "script_that_fits:trainer"},
        {
            "train_fn": f"{__name__}:train_nothing",
            "predictor": "script_that_fits:predictor",
            "workload": "train_core.workloads.digits:Digits",
        },
    ],
    ids=["function", "trainer", "predictor"],
)
def test_a_module_that_trains_when_it_is_imported_is_refused_before_it_does(
    given: dict[str, str], script: Path
) -> None:
    with pytest.raises(WorkloadError) as raised:
        with_trainers_settings(TrainConfig(**given))
    assert script.with_suffix(".imported").exists()
    told = str(raised.value)
    assert "script_that_fits:" in told
    assert "calls .fit() when it is imported" in told
    assert 'put the call below `if __name__ == "__main__":`' in told
    assert "PYTHONPATH" not in told


def test_what_a_trainer_says_takes_the_place_of_defaults() -> None:
    found = settings_of("says_all")
    assert (found.num_workers, found.cpus_per_worker, found.gpus_per_worker) == (2, 0.5, 0)
    assert found.placement_strategy == "SPREAD"
    assert (found.monitor, found.monitor_order) == ("loss", "min")
    assert (found.keep_last, found.keep_best, found.keep_every_steps) == (1, 3, 0)


@pytest.mark.parametrize(
    ("factory", "keep_last", "keep_best", "monitor"),
    [("keeps_most_recent", 2, 2, ""), ("keeps_best", 1, 2, "mean_accuracy")],
)
def test_the_examples_of_rays_page_on_checkpoints_are_taken_in_rays_meaning(
    factory: str, keep_last: int, keep_best: int, monitor: str
) -> None:
    found = settings_of(factory)
    kept = (found.keep_last, found.keep_best, found.keep_every_steps)
    assert kept == (keep_last, keep_best, 0)
    assert found.monitor == monitor


@pytest.mark.promise("trainers-word")
@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"num_workers": 3}, "num_workers is 3, and the trainer of"),
        ({"cpus_per_worker": 0.25}, "has 0.5 CPUs for each worker in its ScalingConfig"),
        ({"gpus_per_worker": 1}, "has 0 GPUs for each worker in its ScalingConfig"),
        ({"placement_strategy": "STRICT_PACK"}, "has placement_strategy='SPREAD'"),
        ({"keep_last": 4}, "keep_last is 4, and the trainer of"),
        ({"keep_best": 4}, "has num_to_keep=3 in its CheckpointConfig: say it there, or leave"),
        ({"monitor": "accuracy"}, "has checkpoint_score_attribute='loss'"),
    ],
)
def test_a_parameter_that_the_trainer_has_another_value_for_is_refused(
    asked: dict[str, Any], told: str
) -> None:
    with pytest.raises(WorkloadError) as raised:
        settings_of("says_all", **asked)
    assert told in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_same_value_is_not_refused() -> None:
    same = {"num_workers": 2, "cpus_per_worker": 0.5, "keep_best": 3, "monitor": "loss"}
    assert settings_of("says_all", **same) == settings_of("says_all")


def test_a_run_goes_on_when_its_factory_was_changed() -> None:
    recorded = settings_of("says_all").model_copy(
        update={"num_workers": 4, "keep_best": 7, "cpus_per_worker": 0.25}
    )
    asked = recorded.model_dump(exclude={"trainer", "workload"})
    assert settings_of("says_all", recorded, **asked) == settings_of("says_all")


def test_a_rule_of_retention_counts_where_the_trainer_says_nothing() -> None:
    assert settings_of("says_nothing").keep_every_steps == 1
    found = settings_of("says_nothing", keep_last=4)
    assert (found.keep_last, found.keep_every_steps) == (4, 0)


def test_the_order_of_a_metric_is_that_of_whoever_names_it() -> None:
    found = settings_of("says_nothing", monitor="loss", monitor_order="min")
    assert (found.monitor, found.monitor_order) == ("loss", "min")
