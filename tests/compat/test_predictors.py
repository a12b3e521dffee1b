"""Predictors: checkpoints of a training function are evaluated, and the best one scores data."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from pydantic import ValidationError
from torch import nn

from tests import commands
from train_core import TrainConfig, fit, predictors
from train_core.errors import WorkloadError

FUNCTION = "tests.compat.functions.digits_function:train_digits"
DIGITS = "train_core.workloads.digits:Digits"


def save(path: Path, value: Any) -> Path:
    torch.save(value, path)
    return path


def test_a_state_dict_is_loaded(tmp_path: Path) -> None:
    saved = nn.Linear(3, 2)
    path = save(tmp_path / "model.pt", saved.state_dict())
    found = predictors.from_state_dict(path, nn.Linear(3, 2))
    assert torch.equal(found.weight, saved.weight)
    with pytest.raises(WorkloadError, match=r"model\.pt does not fit Linear"):
        predictors.from_state_dict(path, nn.Linear(4, 2))


def test_a_checkpoint_of_lightning_is_loaded(tmp_path: Path) -> None:
    saved = nn.Linear(3, 2)
    path = save(tmp_path / "checkpoint.ckpt", {"epoch": 3, "state_dict": saved.state_dict()})
    assert torch.equal(predictors.from_lightning(path, nn.Linear(3, 2)).bias, saved.bias)
    other = save(tmp_path / "other.ckpt", {"epoch": 3})
    with pytest.raises(WorkloadError, match="no checkpoint of Lightning"):
        predictors.from_lightning(other, nn.Linear(3, 2))


class Evil:
    """Reading it by pickle leaves a file."""

    def __init__(self, place: Path) -> None:
        self.place = place

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.place,)


def read_as_model(folder: Path) -> nn.Module:
    predictors.read(folder / "model.pt")
    return nn.Identity()


@pytest.mark.promise("own-predictor")
def test_a_pickle_is_read_only_where_it_is_trusted(tmp_path: Path) -> None:
    path = save(tmp_path / "model.pt", Evil(tmp_path / "was-here"))
    with pytest.raises(WorkloadError, match="run with trust_pickle"):
        predictors.read(path)
    assert not (tmp_path / "was-here").exists()
    predictors.apply(read_as_model, tmp_path, is_trusted=True)
    assert (tmp_path / "was-here").exists()
    with pytest.raises(WorkloadError, match="run with trust_pickle"):
        predictors.read(path)


def test_what_cannot_be_called_is_no_predictor() -> None:
    made = predictors.apply(lambda _: lambda inputs: inputs + 1, Path(), is_trusted=False)
    assert made(1) == 2
    with pytest.raises(WorkloadError, match="made str, and nothing that can be called"):
        predictors.apply(str, Path(), is_trusted=False)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"train_fn": FUNCTION, "predictor": "a:b"}, "needs workload"),
        ({"predictor": "a:b"}, "needs train_fn or trainer"),
        ({"train_fn": FUNCTION, "trust_pickle": True}, "trust_pickle needs predictor"),
    ],
)
def test_a_predictor_needs_a_function_and_a_workload(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TrainConfig(**given)


def retrain(place: Path, *more: str) -> subprocess.CompletedProcess[str]:
    config = json.dumps({"epochs": 3, "whole": "--whole" in more})
    return commands.run(
        [
            *(*commands.EVERTRAIN, "retrain", "--run", "run"),
            *("--train-fn", FUNCTION, "--train-loop-config", config, "--workload", DIGITS),
            *("--storage", str(place / "runs"), "--tracking-uri", ""),
            *("--monitor", "validation/accuracy"),
            *(one for one in more if one != "--whole"),
        ]
    )


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.promise("own-predictor")
def test_with_a_predictor_a_function_is_evaluated_and_the_best_checkpoint_infers(
    tmp_path: Path,
) -> None:
    ended = retrain(tmp_path, "--predictor", "tests.compat.functions.digits_function:predictor")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    report = json.loads((tmp_path / "runs/run/report.json").read_text())
    accuracies = [
        one["metrics"]["accuracy"] for one in report["evaluations"] if one["split"] == "validation"
    ]
    assert len(accuracies) == 3
    assert accuracies == sorted(accuracies)
    assert report["best"]["step"] == 3
    assert report["test_metrics"]["accuracy"] > 0.5
    table = pq.read_table(report["predictions"]["files"])
    assert table.num_rows == 360
    assert set(table["model_step"].to_pylist()) == {3}


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_function_that_reports_no_checkpoint_has_nothing_that_a_predictor_reads(
    tmp_path: Path,
) -> None:
    config = TrainConfig(
        train_fn="tests.compat.functions.plain:metrics_only",
        workload=DIGITS,
        predictor="tests.compat.functions.digits_function:predictor",
    )
    with pytest.raises(WorkloadError, match="has reported no checkpoint, so there is nothing that"):
        fit(config, storage=str(tmp_path), run="run", on_log=None)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_whole_model_needs_trust(tmp_path: Path) -> None:
    predictor = ("--whole", "--predictor", "tests.compat.functions.digits_function:whole_model")
    refused = retrain(tmp_path, *predictor)
    assert refused.returncode != 0
    assert "run with trust_pickle" in refused.stdout + refused.stderr
    ended = retrain(tmp_path, *predictor, "--trust-pickle")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert json.loads((tmp_path / "runs/run/report.json").read_text())["best"]["step"] == 3
