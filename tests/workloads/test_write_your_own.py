"""The page "Write your own workload" is true: its code is run, its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from tests.workloads.pages import DOCS, blocks_of, not_in_files
from tests.workloads.plain import measure, train_plainly
from train_core.datasets.arrays import ArrayDataset
from train_core.datasets.protocols import SPLITS, fetch
from train_core.errors import DataError, WorkloadError
from train_core.loading import load_workload
from train_core.policy.samples.randomness import SampleRandom
from train_core.workload import Workload

PAGE = (DOCS / "workloads.md").read_text()
pytestmark = pytest.mark.usefixtures("examples_are_importable")


def load(name: str, settings: dict[str, Any]) -> Workload[Any]:
    return load_workload(name, settings)


def final_accuracy(workload: Workload[Any]) -> float:
    model = train_plainly(workload, epochs=20, batch_size=32)
    return measure(workload, model, "test")["accuracy"]


@pytest.mark.promise("page-code")
def test_the_readers_workload_learns(one_thread: None) -> None:
    assert final_accuracy(load("tumours:Tumours", {"hidden": 64})) >= 0.95


@pytest.mark.promise("same-prepare")
def test_inference_needs_no_labels_and_gives_what_evaluation_gave(one_thread: None) -> None:
    workload = load("tumours:Tumours", {})
    model = train_plainly(workload, epochs=1, batch_size=32).eval()
    columns = dict(fetch(workload.dataset("test"), np.arange(50)))
    expected = workload.forward(model, workload.prepare(columns, None))
    for name in workload.target_columns:
        del columns[name]
    outputs = workload.forward(model, workload.prepare(columns, None))
    assert torch.equal(outputs, expected)
    found = workload.predictions(outputs)
    assert found["prediction"].dtype == torch.int64
    assert found["probabilities"].shape == (50, len(workload.class_names))


@pytest.mark.promise("sample-randomness")
def test_augmentation_is_the_samples_own() -> None:
    workload = load("tumours:Tumours", {})
    train, indices = workload.dataset("train"), np.array([7, 300, 41])
    together = workload.prepare(fetch(train, indices), SampleRandom(0, 3, indices))["inputs"]
    alone = workload.prepare(fetch(train, indices[1:2]), SampleRandom(0, 3, indices[1:2]))
    assert torch.equal(alone["inputs"][0], together[1])
    plain = workload.prepare(fetch(train, indices), None)["inputs"]
    assert not torch.equal(together, plain)
    torch.testing.assert_close(together, plain, rtol=0.021, atol=0)


@pytest.mark.promise("settings")
def test_settings_out_of_range_are_refused_by_name() -> None:
    with pytest.raises(WorkloadError, match=r"hidden: .*greater than or equal to 1, got 0"):
        load("tumours:Tumours", {"hidden": 0})


@pytest.mark.promise("mapped-data")
def test_data_larger_than_memory_give_the_same_bits(one_thread: None, tmp_path: Path) -> None:
    in_memory = load("tumours:Tumours", {})
    for split in SPLITS:
        write_rows(tmp_path / f"{split}.npy", in_memory.dataset(split))
    on_disk = load("tumours_extended:TumoursOnDisk", {"folder": str(tmp_path)})
    assert on_disk.dataset("train")[3].keys() == in_memory.dataset("train")[3].keys()
    assert on_disk.dataset("train").digest() != on_disk.dataset("test").digest()
    one, other = (train_plainly(w, epochs=2, batch_size=32) for w in (in_memory, on_disk))
    assert_same_bits(one, other)


def write_rows(path: Path, dataset: ArrayDataset) -> None:
    kinds = [(name, array.dtype) for name, array in dataset.columns.items()]
    rows = np.empty(len(dataset), kinds)
    for name, array in dataset.columns.items():
        rows[name] = array
    np.save(path, rows)


def test_missing_data_are_named(tmp_path: Path) -> None:
    workload = load("tumours_extended:TumoursOnDisk", {"folder": str(tmp_path)})
    with pytest.raises(DataError, match=r"nothing is at .*train\.npy"):
        workload.dataset("train")


def test_a_patient_stays_in_his_split_when_files_come(tmp_path: Path) -> None:
    def ages() -> dict[str, set[float]]:
        workload = load("tumours_extended:TumoursInParquet", {"folder": str(tmp_path)})
        return {split: set(workload.dataset(split).columns[first]) for split in SPLITS}

    whole = load("tumours:Tumours", {}).dataset("train").columns
    first = next(iter(whole))
    rows = pa.table(dict(whole))
    pq.write_table(rows.slice(0, 200), tmp_path / "monday.parquet")
    before = ages()
    assert sum(map(len, before.values())) > 100
    (tmp_path / "week-2").mkdir()
    pq.write_table(rows.slice(200), tmp_path / "week-2" / "monday.parquet")
    after = ages()
    assert all(before[split] < after[split] for split in SPLITS)


@pytest.mark.promise("own-state")
def test_the_moving_average_is_what_is_validated_and_kept_with_the_model(one_thread: None) -> None:
    workload = load("tumours_extended:AveragedTumours", {})
    model = train_plainly(workload, epochs=20, batch_size=32).eval()
    assert measure(workload, model, "test")["accuracy"] >= 0.95
    inputs = workload.prepare(fetch(workload.dataset("test"), np.arange(9)), None)["inputs"]
    assert torch.equal(model(inputs), model.average(inputs))
    assert not torch.equal(model.average(inputs), model.live.eval()(inputs))
    restored = workload.model()
    restored.load_state_dict(model.state_dict())
    assert torch.equal(restored.eval()(inputs), model(inputs))


@pytest.mark.promise("own-state")
def test_the_anchor_is_restored_by_the_workloads_own_state(one_thread: None) -> None:
    workload = load("tumours_extended:AnchoredTumours", {})
    model = train_plainly(workload, epochs=1, batch_size=32)
    continued = load("tumours_extended:AnchoredTumours", {})
    restored = continued.model()
    restored.load_state_dict(model.state_dict())
    continued.load_state_dict(workload.state_dict())
    workload.after_step(model, 1)
    continued.after_step(restored, 1)
    assert_same_bits(model, restored)


def test_the_anchor_holds_the_weights_back(one_thread: None) -> None:
    def travelled(name: str) -> float:
        workload = load(name, {})
        torch.manual_seed(0)
        start = dict(workload.model().named_parameters())
        end = train_plainly(workload, epochs=5, batch_size=32).named_parameters()
        return sum(float((p - start[name]).detach().norm()) for name, p in end)

    assert travelled("tumours_extended:AnchoredTumours") < travelled("tumours:Tumours")


def assert_same_bits(one: torch.nn.Module, other: torch.nn.Module) -> None:
    left, right = one.state_dict(), other.state_dict()
    assert left.keys() == right.keys()
    assert all(torch.equal(left[name], right[name]) for name in left)


@pytest.mark.promise("page-code")
def test_every_piece_of_python_on_the_page_is_in_the_files_that_are_tested() -> None:
    assert len(blocks_of(PAGE)) > 5
    assert not_in_files(PAGE) == []


def test_the_page_names_every_part_that_a_workload_may_have() -> None:
    public = [name for name in vars(Workload) if not name.startswith("_")]
    assert [name for name in public if not re.search(rf"(`|    ){name}\b", PAGE)] == []


def test_the_page_names_workloads_that_exist() -> None:
    for name in re.findall(r"`(train_core\.workloads\.\w+:\w+)`", PAGE):
        settings = {"data": "somewhere"} if "mnist" in name else {}
        assert isinstance(load(name, settings), Workload)
