from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import safetensors.torch
import torch

from tests.workloads.idx_files import format_idx
from tests.workloads.plain import measure, train_plainly
from train_core.datasets.protocols import SPLITS, fetch
from train_core.errors import DataError, WorkloadError
from train_core.loading import load_workload
from train_core.storage.objects.store import Store
from train_core.workloads.resnet import ResNet18

NAME = "train_core.workloads.mnist:MnistResNet18"
NUM_TRAIN, NUM_TEST = 50, 20


def write_data(folder: str, **replaced: npt.NDArray[Any]) -> None:
    """A small data set in MNIST's files; pixels tell the sample's number."""
    arrays = {"t10k_images": images(NUM_TEST), "t10k_labels": labels(NUM_TEST)}
    arrays |= {"train_images": images(NUM_TRAIN), "train_labels": labels(NUM_TRAIN)}
    for name, array in (arrays | replaced).items():
        prefix, kind = name.split("_")
        file = f"{prefix}-{kind}-idx{3 if kind == 'images' else 1}-ubyte.gz"
        Store(folder).write(file, gzip.compress(format_idx(array)))


def images(count: int) -> npt.NDArray[Any]:
    return np.repeat(np.arange(count, dtype=np.uint8), 28 * 28).reshape(count, 28, 28)


def labels(count: int) -> npt.NDArray[Any]:
    return (np.arange(count) % 10).astype(np.uint8)


@pytest.fixture
def folder(storage_url: str) -> str:
    write_data(storage_url)
    return storage_url


@pytest.fixture
def local(tmp_path: Path) -> str:
    write_data(str(tmp_path))
    return str(tmp_path)


def test_the_training_files_are_cut_without_loss_or_overlap(folder: str) -> None:
    workload = load_workload(NAME, {"data": folder, "validation_samples": 15})
    numbers = {}
    for split in SPLITS:
        columns = workload.dataset(split).columns
        assert columns["image"].dtype == np.uint8
        assert columns["label"].dtype == np.int64
        numbers[split] = columns["image"][:, 0, 0].tolist()
        assert columns["label"].tolist() == [number % 10 for number in numbers[split]]
    assert len(numbers["validation"]) == 15
    assert sorted(numbers["train"] + numbers["validation"]) == list(range(NUM_TRAIN))
    assert numbers["test"] == list(range(NUM_TEST))
    assert numbers["validation"] != list(range(35, 50)), "files may be sorted by class"


def test_the_cut_is_the_same_in_every_process(local: str) -> None:
    settings = {"data": local, "validation_samples": 15}
    one, other = (load_workload(NAME, settings).dataset("validation") for _ in range(2))
    assert one.digest() == other.digest()


def test_the_model_is_resnet_18_for_one_channel_and_ten_classes(local: str) -> None:
    workload = load_workload(NAME, {"data": local, "validation_samples": 15})
    batch = workload.prepare(fetch(workload.dataset("validation"), np.arange(4)), None)
    outputs = workload.forward(workload.model(), batch)
    assert outputs.shape == (4, 10)
    assert workload.loss(outputs, batch).shape == ()
    assert workload.example()["image"].shape == (2, 28, 28)
    assert workload.example().keys() == {"image"}


def test_pixels_are_normalised_as_in_the_tutorial(local: str) -> None:
    pixels = np.array([0, 51, 255], np.uint8)
    columns = {"image": np.broadcast_to(pixels[:, None, None], (3, 28, 28))}
    inputs = load_workload(NAME, {"data": local}).prepare(columns, None)["inputs"]
    expected = (torch.tensor([0.0, 0.2, 1.0]) - 0.5) / 0.5
    torch.testing.assert_close(inputs[:, 0, 0, 0], expected)


def test_it_starts_from_published_weights(local: str) -> None:
    published = ResNet18()
    Store(local).write("published.safetensors", safetensors.torch.save(published.state_dict()))
    workload = load_workload(NAME, {"data": local, "weights": f"{local}/published.safetensors"})
    model = workload.model()
    workload.initialize(model)
    torch.testing.assert_close(model.conv1.weight, published.conv1.weight.sum(1, keepdim=True))
    assert torch.equal(model.layer3[0].conv1.weight, published.layer3[0].conv1.weight)


@pytest.mark.promise("mnist-files")
@pytest.mark.parametrize(
    ("replaced", "message"),
    [
        ({"train_images": images(3)[:, :8, :8]}, r"uint8 of shape \(3, 8, 8\), expected .*28, 28"),
        ({"train_images": images(3).astype("i4")}, "are int32 of shape"),
        ({"train_images": images(0), "train_labels": labels(0)}, "has no train images"),
        ({"train_labels": labels(49)}, r"have shape \(49,\), expected \(50,\)"),
        ({"train_labels": labels(50) + 1}, "are 1 to 10, expected 0 to 9"),
    ],
)
def test_data_of_another_kind_are_refused_in_plain_words(
    tmp_path: Path, replaced: dict[str, npt.NDArray[Any]], message: str
) -> None:
    write_data(str(tmp_path), **replaced)
    workload = load_workload(NAME, {"data": str(tmp_path), "validation_samples": 1})
    with pytest.raises(DataError, match=message):
        workload.dataset("train")


def test_holding_out_everything_is_refused(local: str) -> None:
    with pytest.raises(DataError, match=r"validation_samples is 5000 but .* has 50"):
        load_workload(NAME, {"data": local}).dataset("train")


@pytest.mark.parametrize("settings", [{}, {"data": ""}, {"data": "x", "validation_samples": 0}])
def test_settings_that_lack_the_data_are_refused_before_anything_is_read(
    settings: dict[str, Any],
) -> None:
    with pytest.raises(WorkloadError, match=r"data|validation_samples"):
        load_workload(NAME, settings)


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_the_published_files_are_read(real_data: Path, name: str) -> None:
    workload = load_workload(NAME, {"data": str(real_data / name)})
    sizes = {split: len(workload.dataset(split)) for split in SPLITS}
    assert sizes == {"train": 55_000, "validation": 5_000, "test": 10_000}
    for split in SPLITS:
        shares = np.bincount(workload.dataset(split).columns["label"], minlength=10) / sizes[split]
        assert np.abs(shares - 0.1).max() < 0.03


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_one_epoch_reaches_98_5_percent(real_data: Path) -> None:
    workload = load_workload(NAME, {"data": str(real_data / "mnist")})
    model = train_plainly(workload, epochs=1, batch_size=128)
    assert measure(workload, model, "test")["accuracy"] >= 0.985
