from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from tests.workloads.plain import measure, train_plainly
from train_core.config import TrainConfig
from train_core.datasets.protocols import SPLITS, fetch
from train_core.errors import WorkloadError
from train_core.loading import load_workload
from train_core.policy.samples.randomness import SampleRandom
from train_core.workload import Workload
from train_core.workloads.digits import shift

NAME = "train_core.workloads.digits:Digits"
DIGESTS = {
    "train": "fd8a408f28b23ddc",
    "validation": "ef58a7bdd5cacf9e",
    "test": "ccddf077daf513f0",
}


@pytest.fixture
def workload() -> Workload[Any]:
    return load_workload(NAME, {})


def test_it_is_the_default_workload() -> None:
    assert TrainConfig().workload == NAME


def test_the_splits_are_disjoint_complete_and_stratified(workload: Workload[Any]) -> None:
    splits = [workload.dataset(split) for split in SPLITS]
    assert [len(split) for split in splits] == [1257, 180, 360]
    for split in splits:
        assert split.columns["image"].dtype == np.uint8
        assert split.columns["label"].dtype == np.int64
        shares = np.bincount(split.columns["label"]) / len(split)
        assert np.abs(shares - 0.1).max() < 0.01
    images = np.concatenate([split.columns["image"] for split in splits])
    assert len(np.unique(images.reshape(1797, -1), axis=0)) == 1797


def test_the_splits_are_those_of_scikit_learn(workload: Workload[Any]) -> None:
    digits = load_digits()
    rest, test = train_test_split(
        np.arange(1797), test_size=0.2, stratify=digits.target, random_state=0
    )
    train, validation = train_test_split(
        rest, test_size=0.125, stratify=digits.target[rest], random_state=0
    )
    for split, chosen in zip(SPLITS, (train, validation, test), strict=True):
        columns = workload.dataset(split).columns
        assert np.array_equal(columns["image"], digits.images[chosen])
        assert np.array_equal(columns["label"], digits.target[chosen])


@pytest.mark.slow
def test_it_does_not_import_scikit_learn() -> None:
    code = f"""
import sys
from train_core.loading import load_workload
load_workload({NAME!r}, {{}}).dataset("train")
assert "sklearn" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_splits_are_the_same_everywhere(workload: Workload[Any]) -> None:
    digests = {split: workload.dataset(split).digest()[:16] for split in SPLITS}
    assert digests == DIGESTS


def test_the_network_has_batch_statistics_and_dropout(workload: Workload[Any]) -> None:
    kinds = {type(module) for module in workload.model().modules()}
    assert {nn.BatchNorm2d, nn.Dropout} <= kinds


@pytest.mark.slow
def test_three_seeds_reach_97_percent_in_ten_epochs(
    workload: Workload[Any], one_thread: None
) -> None:
    for seed in range(3):
        model = train_plainly(workload, epochs=10, batch_size=128, seed=seed)
        found = measure(workload, model, "test")
        assert found["accuracy"] >= 0.97, f"seed {seed}"
        assert found["f1"] >= 0.97, f"seed {seed}"


def test_the_same_seed_gives_the_same_bits(workload: Workload[Any], one_thread: None) -> None:
    one, other = (train_plainly(workload, epochs=1, batch_size=128).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_a_shift_moves_the_whole_image_and_fills_with_black() -> None:
    images = np.zeros((200, 8, 8), np.uint8)
    images[:, 3, 4] = 9
    moved = shift(images, 1, SampleRandom(0, 0, np.arange(200)))
    assert (moved.reshape(200, -1).sum(1) == 9).all()
    _, rows, columns = np.nonzero(moved)
    found = set(zip((rows - 3).tolist(), (columns - 4).tolist(), strict=True))
    assert found == {(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1)}


def test_a_shift_depends_on_the_sample_and_not_on_its_batch(workload: Workload[Any]) -> None:
    train = workload.dataset("train")
    together = np.array([5, 900, 17, 3])
    batch = workload.prepare(fetch(train, together), SampleRandom(1, 2, together))
    for place, index in enumerate(together):
        alone = together[place : place + 1]
        sample = workload.prepare(fetch(train, alone), SampleRandom(1, 2, alone))
        assert torch.equal(sample["inputs"][0], batch["inputs"][place]), index


def test_no_shift_is_no_change(workload: Workload[Any]) -> None:
    images = fetch(workload.dataset("train"), np.arange(4))["image"]
    np.testing.assert_array_equal(shift(images, 0, SampleRandom(0, 0, np.arange(4))), images)


@pytest.mark.parametrize(
    "settings",
    [{"width": 0}, {"dropout": 1}, {"learning_rate": 0}, {"weight_decay": -1}, {"wdth": 3}],
)
def test_settings_out_of_range_are_refused_by_name(settings: dict[str, Any]) -> None:
    with pytest.raises(WorkloadError, match=next(iter(settings))):
        load_workload(NAME, settings)


def test_every_setting_is_described() -> None:
    properties = load_workload(NAME, {}).Settings.model_json_schema()["properties"]
    assert all(found["description"] for found in properties.values())
