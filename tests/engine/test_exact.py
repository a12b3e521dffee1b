"""A training that is killed and resumed, on any number of workers, ends with the same bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.engine.processes import train

# What makes no new combination runs with the slow tests.
SLOW = pytest.mark.slow

# All features at once; 150 samples make 5 steps an epoch, the last of 22 samples.
CONFIG: dict[str, Any] = {
    "workload": "tests.engine.tiny:Tiny",
    "epochs": 2,
    "batch_size": 32,
    "accumulation_steps": 2,
    "num_shards": 4,
    "clip_norm": 1.0,
    "eval_batch_size": 16,
    "checkpoint_every_steps": 2,
    "checkpoint_backpressure": "wait",
    "monitor": "validation/loss",
    "monitor_order": "min",
    "early_stopping_patience": 5,
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the run that nobody touched, on one worker."""
    storage = str(tmp_path_factory.mktemp("undisturbed"))
    found = train(storage, "run", attempt=1, workers=1, config=CONFIG)
    assert found
    return str(found["digest"])


@pytest.mark.parametrize("workers", [pytest.param(2, marks=SLOW), 3, 4])
def test_number_of_workers_leaves_no_trace(undisturbed: str, workers: int, tmp_path: Path) -> None:
    found = train(str(tmp_path), "run", attempt=1, workers=workers, config=CONFIG)
    assert found == {"digest": undisturbed}


@pytest.mark.parametrize(
    ("point", "step", "rank", "workers", "workers_after"),
    [
        pytest.param("before_step", 0, 0, 1, 1, marks=SLOW),
        pytest.param("before_step", 3, 1, 2, 2, marks=SLOW),
        ("in_step", 3, 0, 4, 2),
        ("in_step", 7, 3, 4, 3),
        ("in_validation", 5, 1, 2, 4),
        ("before_manifest", 6, 0, 2, 1),
        pytest.param("before_manifest", 10, 0, 1, 2, marks=SLOW),
    ],
)
def test_killed_run_ends_as_if_undisturbed(
    undisturbed: str,
    point: str,
    step: int,
    rank: int,
    workers: int,
    workers_after: int,
    tmp_path: Path,
) -> None:
    storage = str(tmp_path)
    died = train(
        storage, "run", attempt=1, workers=workers, config=CONFIG, point=point, step=step, rank=rank
    )
    assert died is None
    found = train(storage, "run", attempt=2, workers=workers_after, config=CONFIG)
    assert found == {"digest": undisturbed}


def test_second_kill_soon_after_the_first_resume(undisturbed: str, tmp_path: Path) -> None:
    storage = str(tmp_path)
    train(storage, "run", attempt=1, workers=2, config=CONFIG, point="in_step", step=4)
    train(storage, "run", attempt=2, workers=1, config=CONFIG, point="in_step", step=5)
    found = train(storage, "run", attempt=3, workers=3, config=CONFIG)
    assert found == {"digest": undisturbed}


@pytest.mark.parametrize(
    ("num_shards", "workers"), [pytest.param(8, 3, marks=SLOW), (8, 5), (3, 2)], ids=str
)
def test_any_division_of_shards_among_workers(
    num_shards: int, workers: int, tmp_path: Path
) -> None:
    config = CONFIG | {"num_shards": num_shards, "epochs": 1, "batch_size": 64, "drop_last": True}
    alone = train(str(tmp_path), "alone", attempt=1, workers=1, config=config)
    together = train(str(tmp_path), "together", attempt=1, workers=workers, config=config)
    assert alone == together


def test_noise_in_evaluation_and_in_the_hook_does_not_depend_on_workers(tmp_path: Path) -> None:
    config = CONFIG | {"workload": "tests.engine.tiny:Noisy"}
    alone = train(str(tmp_path), "alone", attempt=1, workers=1, config=config)
    together = train(str(tmp_path), "together", attempt=1, workers=3, config=config)
    assert alone == together


@pytest.mark.parametrize(
    "change",
    [
        {"settings": {"momentum": 0.9}},
        {"precision": "bf16"},
        {"settings": {"sample_by_sample": True}, "data_workers": 2},
        {"drop_last": True, "checkpoint_every_steps": 3},
        {"workload": "tests.engine.tiny:StreamingTiny"},
        {
            "workload": "train_core.workloads.digits:Digits",
            "channels_last": True,
            "batch_size": 256,
        },
        pytest.param({"compile": True}, marks=SLOW),
    ],
    ids=["momentum", "bf16", "data-workers", "drop-last", "stream", "channels-last", "compile"],
)
def test_each_feature_resumes_exactly(change: dict[str, Any], tmp_path: Path) -> None:
    config = CONFIG | change
    reference = train(str(tmp_path), "reference", attempt=1, workers=2, config=config)
    train(str(tmp_path), "run", attempt=1, workers=2, config=config, point="in_step", step=4)
    assert train(str(tmp_path), "run", attempt=2, workers=1, config=config) == reference
