"""Training functions of other libraries, and Ray's own samples, under evertrain."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from ray.train import Result
from ray.train.torch import TorchTrainer

from tests.compat.functions.reference_functions import inspect_checkpoint
from tests.compat.reports.ranks import entries
from train_core import TrainConfig, fit, open_run, verify_run
from train_core.errors import UserCodeError
from train_core.loading import load_function
from train_core.storage.run_folder import RunFolder

# The driver's processes end with it.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300), pytest.mark.leaves]
FUNCTIONS = "tests.compat.functions"
LIBRARIES = {
    *("accelerate", "deepspeed", "lightgbm", "lightning", "pytorch_lightning", "transformers"),
    "xgboost",
}


def run(storage: Path, **parameters: Any) -> RunFolder:
    """Run it to its end; each checkpoint is verified."""
    if "trainer" not in parameters:
        parameters["keep_last"] = 20
    fit(TrainConfig(**parameters), storage=str(storage), run="run")
    folder = RunFolder(str(storage), "run")
    assert not [one for one in verify_run(folder) if one.faults]
    newest = folder.newest()
    assert newest is not None
    assert newest.manifest.is_function_end
    return folder


def skip_without_library(function: str) -> None:
    """The libraries are optional: `pip install -c constraints.txt -e '.[frameworks]'`."""
    library = function.partition(":")[0].removesuffix("_functions")
    if library in LIBRARIES and not find_spec(library):
        pytest.skip(f"{library} is not installed")


def names_in_newest(folder: RunFolder) -> set[str]:
    newest = folder.newest_reported()
    assert newest is not None
    return {entry.name.removeprefix("files/") for entry in newest.manifest.files}


def steps(folder: RunFolder) -> list[int]:
    return [entry.step for entry in entries(folder)]


@pytest.mark.parametrize(
    ("function", "file"),
    [
        ("lightning_functions:resume", "checkpoint.ckpt"),
        ("lightning_functions:custom_callback", "ckpt.pt"),
        ("transformers_functions:report_callback", "checkpoint/model.safetensors"),
        ("transformers_functions:custom_callback", "model.safetensors"),
        ("pytorch_lightning_functions:resume", "checkpoint.ckpt"),
        ("accelerate_functions:save_model", "model.safetensors"),
        ("accelerate_functions:unwrap_model", "state.pt"),
        ("deepspeed_functions:zero3", "zero_pp_rank_1_mp_rank_00_optim_states.pt"),
        ("fsdp2_function:fsdp2", ".metadata"),
        ("reference_functions:report_from_rank_0", "model.txt"),
        ("reference_functions:save_shards", "model-rank=1.pt"),
    ],
)
def test_a_function_of_another_library_runs_unmodified(
    tmp_path: Path, function: str, file: str
) -> None:
    skip_without_library(function)
    folder = run(tmp_path, train_fn=f"{FUNCTIONS}.{function}", num_workers=2)
    names = names_in_newest(folder)
    assert file in names or any(name.endswith(f"/{file}") for name in names), names
    assert steps(folder) == list(range(1, len(steps(folder)) + 1))


@pytest.mark.parametrize(
    "function",
    [
        "lightning_functions:resume",
        "pytorch_lightning_functions:resume",
        "transformers_functions:report_callback",
        "deepspeed_functions:zero3",
    ],
)
def test_a_function_of_another_library_resumes_after_an_error(
    tmp_path: Path, function: str
) -> None:
    skip_without_library(function)
    name = f"{FUNCTIONS}.{function}"
    parameters: dict[str, Any] = {"train_fn": name, "num_workers": 2}
    with pytest.raises(UserCodeError, match="Intentional error"):
        run(tmp_path, **parameters, train_loop_config={"fails_at": 2})
    failed = RunFolder(str(tmp_path), "run").newest_reported()
    assert failed is not None
    folder = run(tmp_path, **parameters, train_loop_config={})
    assert folder.exists_checkpoint(failed.name)
    assert steps(folder) == list(range(1, len(steps(folder)) + 1))
    assert steps(folder)[-1] > failed.step


@pytest.mark.parametrize(
    "trainer",
    [
        "reference_functions:save_trainer",
        "reference_functions:save_and_restore_trainer",
        "reference_functions:save_shards_trainer",
        "lightning_functions:resume_trainer",
        "ray_examples:regression_trainer",
    ],
)
def test_a_trainer_of_rays_pages_runs_as_it_is(tmp_path: Path, trainer: str) -> None:
    skip_without_library(trainer)
    folder = run(tmp_path, trainer=f"{FUNCTIONS}.{trainer}")
    assert steps(folder) == list(range(1, len(steps(folder)) + 1))
    assert folder.newest_reported() is not None


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_trees_of_a_trainer_that_reads_ray_data_are_resumed_after_an_error(
    tmp_path: Path, library: str
) -> None:
    skip_without_library(f"{library}_functions")
    folder = run(tmp_path, trainer=f"{FUNCTIONS}.{library}_functions:trainer")
    reported = folder.reported()
    # Each tree is a report, and every second one a checkpoint; the first attempt made four.
    assert [(one.step, one.attempt) for one in reported] == [(2, 1), (4, 1), (6, 2)]
    assert steps(folder) == [1, 2, 3, 4, 5, 6]
    assert all(entry.metrics for entry in entries(folder))


@pytest.mark.parametrize(
    ("library", "num_to_keep", "metric", "order", "finds", "position"),
    [
        ("lightning", 2, "mean_accuracy", "max", "epoch_of_checkpoint", 2),
        # Three epochs of eight batches.
        ("transformers", 3, "eval_loss", "min", "step_of_checkpoint", 24),
    ],
)
def test_a_trainers_best_checkpoints_are_kept_and_read_as_rays_page_reads_them(
    tmp_path: Path,
    library: str,
    num_to_keep: int,
    metric: str,
    order: str,
    finds: str,
    position: int,
) -> None:
    pytest.importorskip(library)
    functions = f"{FUNCTIONS}.{library}_functions"
    folder = run(tmp_path, trainer=f"{functions}:report_callback_trainer")
    found = open_run(folder.url)
    reported = {entry.step: entry.metrics[metric] for entry in entries(folder)}
    # Of equals the later one is the better one.
    sign = 1 if order == "max" else -1
    best = sorted(reported, key=lambda step: (sign * reported[step], step))[-num_to_keep:]
    newest = max(reported)
    assert {one.step for one in found.checkpoints} == {*best, newest}
    assert found.best().step == best[-1]
    result = Result(
        metrics={},
        checkpoint=found.latest().to_ray(),
        error=None,
        path=folder.url,
        best_checkpoints=[],
    )
    assert load_function(f"{functions}:{finds}")(result) == position


def test_a_checkpoint_is_inspected_as_on_rays_page(tmp_path: Path) -> None:
    assert Path(inspect_checkpoint(str(tmp_path / "checkpoint")), "model.pt").exists()


@pytest.mark.parametrize(
    ("function", "config", "longer"),
    [
        ("reference_functions:save_and_restore", {"num_epochs": 3}, {"num_epochs": 5}),
        ("lightning_functions:resume", {"max_epochs": 2}, {"max_epochs": 4}),
    ],
)
def test_a_run_is_seeded_with_a_checkpoint_of_another(
    tmp_path: Path, function: str, config: dict[str, int], longer: dict[str, int]
) -> None:
    skip_without_library(function)
    parameters: dict[str, Any] = {"train_fn": f"{FUNCTIONS}.{function}", "num_workers": 2}
    first = run(tmp_path, **parameters, train_loop_config=config, max_failures=1)
    (num_before,), (num_all,) = config.values(), longer.values()
    assert steps(first) == list(range(1, num_before + 1))
    again = TrainConfig(**parameters, train_loop_config=longer, init_from="run")
    fit(again, storage=str(tmp_path), run="seeded")
    # Only the epochs that the first run had not.
    assert steps(RunFolder(str(tmp_path), "seeded")) == list(range(1, num_all - num_before + 1))


def trainer_with_a_seed() -> TorchTrainer:
    """Ray's sample that begins with a folder of which no run knows."""
    seeded = load_function(f"{FUNCTIONS}.lightning_functions:seeded_trainer")
    return seeded(os.environ["SEED_FOLDER"])


def test_a_run_is_seeded_with_a_folder_that_is_no_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("lightning")
    name = f"{FUNCTIONS}.lightning_functions:resume"
    first = run(tmp_path / "first", train_fn=name, train_loop_config={"max_epochs": 3})
    place = open_run(first.url).latest().to_directory(tmp_path / "ckpt_dir")
    monkeypatch.setenv("SEED_FOLDER", str(place))
    folder = run(tmp_path, trainer=f"{__name__}:trainer_with_a_seed")
    # Only the last of the four epochs was left.
    assert [entry.metrics["epoch"] for entry in entries(folder)] == [3]


needs_mnist = pytest.mark.skipif(
    "EVERTRAIN_DATA" not in os.environ, reason="EVERTRAIN_DATA is not set"
)


@needs_mnist
def test_the_trainer_of_rays_tutorial_runs_as_it_is(tmp_path: Path) -> None:
    folder = run(tmp_path, trainer=f"{FUNCTIONS}.mnist_resnet18:trainer")
    assert steps(folder) == [1, 2, 3]


@needs_mnist
@pytest.mark.parametrize(
    ("function", "config"),
    [
        ("train_loop_ray_train", {}),
        ("train_loop_ray_train", {"every_rank": True}),
        ("train_loop_with_checkpoint_loading", {}),
    ],
)
def test_rays_tutorial_on_mnist_runs_as_it_is(
    tmp_path: Path, function: str, config: dict[str, Any]
) -> None:
    name = f"{FUNCTIONS}.mnist_resnet18:{function}"
    folder = run(tmp_path, train_fn=name, num_workers=2, train_loop_config=config)
    assert "model.pt" in names_in_newest(folder)


def test_an_example_of_rays_package_runs_as_it_is(tmp_path: Path) -> None:
    name = "ray.train.examples.pytorch.torch_linear_example:train_func"
    config = {"lr": 1e-2, "hidden_size": 1, "batch_size": 4, "epochs": 3}
    folder = run(tmp_path, train_fn=name, num_workers=2, train_loop_config=config)
    assert steps(folder) == [1, 2, 3]
