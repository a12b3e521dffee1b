"""Training functions of other libraries, and Ray's own samples, under evertrain."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from train_core import TrainConfig, fit, verify_run
from train_core.errors import UserCodeError
from train_core.storage.records.journal import read_segments
from train_core.storage.run_folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
COMPAT = "tests.compat"


@pytest.fixture(autouse=True)
def no_leaks() -> None:
    """The driver's processes end with it."""


def run(storage: Path, **parameters: Any) -> RunFolder:
    """Run it to its end; each checkpoint is verified."""
    config = TrainConfig(keep_last=20, **parameters)
    fit(config, storage=str(storage), run="run")
    folder = RunFolder(str(storage), "run")
    assert not [one for one in verify_run(folder) if one.faults]
    newest = folder.newest()
    assert newest is not None
    assert newest.manifest.is_function_end
    return folder


def skip_without_library(function: str) -> None:
    """The libraries are optional: `pip install -c constraints.txt -e '.[frameworks]'`."""
    library = function.partition("_")[0]
    if library in ("accelerate", "lightning", "transformers"):
        pytest.importorskip(library)


def names_in_newest(folder: RunFolder) -> set[str]:
    newest = folder.newest_reported()
    assert newest is not None
    return {entry.name.removeprefix("files/") for entry in newest.manifest.files}


def steps(folder: RunFolder) -> list[int]:
    newest = folder.newest()
    assert newest is not None
    return [entry.step for entry in read_segments(folder.store, newest.manifest.journal)]


@pytest.mark.parametrize(
    ("function", "file"),
    [
        ("lightning_functions:resume", "checkpoint.ckpt"),
        ("lightning_functions:custom_callback", "ckpt.pt"),
        ("transformers_functions:report_callback", "checkpoint/model.safetensors"),
        ("transformers_functions:custom_callback", "model.safetensors"),
        ("accelerate_functions:save_model", "model.safetensors"),
        ("accelerate_functions:unwrap_model", "state.pt"),
        ("fsdp2_function:fsdp2", ".metadata"),
        ("reference_functions:report_from_rank_0", "model.txt"),
        ("reference_functions:save_shards", "model-rank=1.pt"),
    ],
)
def test_a_function_of_another_library_runs_unmodified(
    tmp_path: Path, function: str, file: str
) -> None:
    skip_without_library(function)
    folder = run(tmp_path, train_fn=f"{COMPAT}.{function}", num_workers=2)
    names = names_in_newest(folder)
    assert file in names or any(name.endswith(f"/{file}") for name in names), names
    assert steps(folder) == list(range(1, len(steps(folder)) + 1))


@pytest.mark.parametrize(
    "function", ["lightning_functions:resume", "transformers_functions:report_callback"]
)
def test_a_function_of_another_library_resumes_after_an_error(
    tmp_path: Path, function: str
) -> None:
    skip_without_library(function)
    name = f"{COMPAT}.{function}"
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
        "lightning_functions:resume_trainer",
    ],
)
def test_a_trainer_of_rays_pages_runs_as_it_is(tmp_path: Path, trainer: str) -> None:
    skip_without_library(trainer)
    folder = run(tmp_path, trainer=f"{COMPAT}.{trainer}")
    assert steps(folder) == list(range(1, len(steps(folder)) + 1))
    assert folder.newest_reported() is not None


@pytest.mark.skipif("EVERTRAIN_DATA" not in os.environ, reason="EVERTRAIN_DATA is not set")
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
    name = f"{COMPAT}.mnist_resnet18:{function}"
    folder = run(tmp_path, train_fn=name, num_workers=2, train_loop_config=config)
    assert "model.pt" in names_in_newest(folder)


def test_an_example_of_rays_package_runs_as_it_is(tmp_path: Path) -> None:
    name = "ray.train.examples.pytorch.torch_linear_example:train_func"
    config = {"lr": 1e-2, "hidden_size": 1, "batch_size": 4, "epochs": 3}
    folder = run(tmp_path, train_fn=name, num_workers=2, train_loop_config=config)
    assert steps(folder) == [1, 2, 3]
