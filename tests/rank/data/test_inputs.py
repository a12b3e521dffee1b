"""Data to score: what a file lacks is told by name before anything is computed, and what was opened
is what is read."""

from __future__ import annotations

import gzip
import io
import os
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from pydantic import Field

from tests.rank.data.rows import only_rows
from tests.workloads.idx_files import format_idx
from train_core import Batch, Columns, Settings, Workload
from train_core.described_errors import describe, rebuild
from train_core.errors import DataError
from train_core.policy.samples.randomness import SampleRandom
from train_core.rank.data.inputs import Input, open_input, read_input
from train_core.rank.data.raw_columns import MissingColumnError, prepared
from train_core.storage.objects.store import Store


class AskedSettings(Settings):
    asks: tuple[str, ...] = Field(default=("age", "size"))
    way: str = "by name"


class Asks(Workload[AskedSettings]):
    """Needs the columns that its settings name, and no data of its own."""

    Settings = AskedSettings

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        names = list(self.settings.asks)
        if self.settings.way == "from a data frame":
            values = pd.DataFrame({name: columns[name] for name in columns})[names].to_numpy()
            return {"inputs": torch.from_numpy(values)}
        if self.settings.way == "in a vocabulary":
            raise KeyError("whale")
        if self.settings.way == "if it is there":
            try:
                return {"inputs": torch.from_numpy(columns["weight"])}
            except KeyError:
                names = names[:1]
        return {"inputs": torch.tensor(np.stack([columns[name] for name in names], 1))}


def asks(*names: str, way: str = "by name") -> Asks:
    return Asks(AskedSettings(asks=names or ("age", "size"), way=way))


def parquet(**columns: Any) -> bytes:
    data = io.BytesIO()
    pq.write_table(pa.table(columns), data, row_group_size=2)
    return data.getvalue()


def patients(rows: int, **more: Any) -> bytes:
    columns = {"age": np.arange(rows) / 2, "size": np.ones(rows)}
    return parquet(**columns, **more)


def opened(url: str, workload: Workload[Any]) -> Input:
    return open_input(url, workload, with_digests=True)


@pytest.mark.promise("input-refused")
def test_a_missing_column_is_told_with_its_file_and_what_is_there(storage_url: str) -> None:
    store = Store(storage_url)
    store.write("a.parquet", patients(5))
    store.write("b.parquet", parquet(age=[1.0, 2.0], sise=[1.0, 2.0], label=[0, 1]))
    with pytest.raises(DataError) as raised:
        open_input(storage_url, asks())
    assert str(raised.value) == (
        f"{store.uri('b.parquet')} has no column 'size', which the workload's prepare asks for: "
        "it has age, label, sise"
    )
    again = rebuild(describe("prepare", raised.value))
    assert (type(again), str(again)) == (DataError, str(raised.value))


@pytest.mark.promise("scored-folder")
def test_a_folder_is_all_data_below_it(storage_url: str) -> None:
    store = Store(storage_url)
    for name in ("b.parquet", "2026/a.parquet", "2026/11/a.parquet"):
        store.write(name, patients(1))
    for name in ("_delta/a.parquet", ".tmp-a.parquet", "2026/_a.parquet"):
        store.write(name, patients(7))
    found = opened(storage_url, asks())
    ids, columns = only_rows(found, asks(), range(3))
    assert ids == ["2026/11/a.parquet#0", "2026/a.parquet#0", "b.parquet#0"]
    assert len(columns["age"]) == found.num_rows == 3


def test_the_workers_tell_the_file_of_several_that_lacks_it(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write("a.parquet", patients(3))
    store.write("b.parquet", parquet(age=[1.0, 2.0]))
    workload = asks("size")
    found = opened(str(tmp_path), asks("age"))
    has, lacks = read_input(found, workload, range(5))
    prepared(workload, has.columns)
    with pytest.raises(MissingColumnError, match=r"b\.parquet has no column 'size'.*it has age$"):
        prepared(workload, lacks.columns)


@pytest.mark.parametrize("name", ["new.png", "new-idx3-ubyte"])
def test_images_have_no_columns_of_a_table(name: str, tmp_path: Path) -> None:
    image = np.zeros((3, 3), np.uint8)
    if name.endswith(".png"):
        Image.fromarray(image).save(tmp_path / name)
    else:
        Store(str(tmp_path)).write(name, format_idx(image[None]))
    with pytest.raises(DataError, match=rf"{name} has no column 'age'.*it has image$"):
        open_input(str(tmp_path), asks())


def test_columns_that_nobody_asks_for_do_no_harm(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write("a.parquet", patients(3, label=[0, 1, 0], note=["x", "y", "z"]))
    store.write("b.parquet", patients(3, id=["p", "q", "r"]))
    store.write("c.parquet", parquet(nothing=pa.array([], pa.int64())))
    found = opened(str(tmp_path), asks())
    first, second = read_input(found, asks(), range(1, 5))
    assert first.ids + second.ids == ["a.parquet#1", "a.parquet#2", "p", "q"]
    assert prepared(asks(), first.columns)["inputs"].tolist() == [[0.5, 1], [1, 1]]
    assert prepared(asks(), second.columns)["inputs"].tolist() == [[0, 1], [0.5, 1]]


def test_a_column_that_a_workload_can_do_without_may_be_missing(tmp_path: Path) -> None:
    Store(str(tmp_path)).write("a.parquet", parquet(age=[1.0]))
    assert open_input(str(tmp_path), asks(way="if it is there")).num_rows == 1


def test_a_data_frames_missing_column_is_told_as_one(tmp_path: Path) -> None:
    Store(str(tmp_path)).write("a.parquet", parquet(age=[1.0]))
    with pytest.raises(DataError, match=r"a\.parquet has no column .*size.*it has age"):
        open_input(str(tmp_path), asks(way="from a data frame"))


def test_another_key_error_is_the_workloads_own(tmp_path: Path) -> None:
    Store(str(tmp_path)).write("a.parquet", parquet(age=[1.0]))
    workload = asks(way="in a vocabulary")
    _, columns = only_rows(opened(str(tmp_path), workload), workload, range(1))
    with pytest.raises(KeyError, match="whale") as raised:
        prepared(workload, columns)
    assert not isinstance(raised.value, DataError)


@pytest.mark.promise("predictions-input")
def test_an_input_is_named_by_its_files_names_sizes_and_contents(storage_url: str) -> None:
    store = Store(storage_url)
    store.write("a.parquet", patients(3))
    store.write("b.parquet", patients(4))
    found = opened(storage_url, asks())
    said = found.describe()
    assert (said["num_files"], said["num_rows"]) == (2, 7)
    assert [file["name"] for file in said["files"]] == ["a.parquet", "b.parquet"]
    assert opened(storage_url, asks()).describe() == said
    store.write("b.parquet", parquet(age=np.zeros(4), size=np.ones(4)))
    changed = opened(storage_url, asks())
    assert changed.files[0] == found.files[0]
    assert changed.digest != found.digest


@pytest.mark.promise("input-replaced")
@pytest.mark.parametrize("what", ["other content", "more rows", "nothing"])
def test_a_file_that_was_replaced_after_it_was_opened_is_not_read(
    what: str, storage_url: str
) -> None:
    store = Store(storage_url)
    store.write("a.parquet", patients(3))
    found = opened(storage_url, asks())
    content = {"other content": parquet(age=np.zeros(3), size=np.ones(3)), "more rows": patients(4)}
    if what in content:
        store.write("a.parquet", content[what])
    else:
        store.delete("a.parquet")
    with pytest.raises(DataError, match=r"a\.parquet is not what it was when the input was opened"):
        only_rows(found, asks(), range(2))


@pytest.mark.promise("input-replaced")
def test_files_that_arrive_later_are_no_part_of_it(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.write("b.parquet", patients(3))
    found = opened(str(tmp_path), asks())
    store.write("a.parquet", patients(9))
    ids, _ = only_rows(found, asks(), range(3))
    assert ids == ["b.parquet#0", "b.parquet#1", "b.parquet#2"]


def test_only_the_heads_are_read_to_open_an_input(tmp_path: Path) -> None:
    header = format_idx(np.zeros((0, 1000, 1000), np.uint8))
    header = header[:4] + (10**6).to_bytes(4, "big") + header[8:]
    with (tmp_path / "huge-idx3-ubyte").open("wb") as file:
        file.write(header)
        os.truncate(file.fileno(), len(header) + 10**12)
    assert open_input(str(tmp_path), asks("image")).num_rows == 10**6


def test_a_packed_file_is_read_once_where_it_is_there_twice(tmp_path: Path) -> None:
    store, images = Store(str(tmp_path)), np.arange(18, dtype=np.uint8).reshape(2, 3, 3)
    store.write("a-idx3-ubyte", format_idx(images))
    store.write("a-idx3-ubyte.gz", gzip.compress(format_idx(images)))
    store.write("b-idx3-ubyte.gz", gzip.compress(format_idx(images)))
    ids, columns = only_rows(opened(str(tmp_path), asks("image")), asks("image"), range(4))
    assert ids == ["a-idx3-ubyte#0", "a-idx3-ubyte#1", "b-idx3-ubyte#0", "b-idx3-ubyte#1"]
    np.testing.assert_array_equal(columns["image"], np.concatenate([images, images]))


@pytest.mark.promise("input-refused")
@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("a.parquet", b"", "a.parquet is not a readable Parquet file"),
        ("a.parquet", patients(3)[:-9], "a.parquet is not a readable Parquet file"),
        ("a-idx3-ubyte", b"", "a-idx3-ubyte is truncated"),
        ("a-idx3-ubyte", format_idx(np.zeros((2, 3, 3), np.uint8))[:-1], "is truncated: expected"),
        ("a-idx3-ubyte.gz", b"no gzip", "a-idx3-ubyte.gz is corrupt"),
        ("a.png", b"no image", "a.png is not a readable image"),
    ],
)
def test_a_file_that_is_none_of_its_kind_is_named(
    name: str, content: bytes, told: str, storage_url: str
) -> None:
    Store(storage_url).write(name, content)
    with pytest.raises(DataError, match=told):
        open_input(storage_url, asks("image"))


def test_one_file_is_an_input_too(storage_url: str) -> None:
    store = Store(storage_url)
    store.write("a.parquet", patients(3))
    store.write("b.parquet", parquet(other=[1]))
    assert [file.name for file in opened(store.uri("a.parquet"), asks()).files] == ["a.parquet"]


@pytest.mark.promise("bad-file-named")
def test_a_row_that_prepare_refuses_is_named_with_its_file(tmp_path: Path) -> None:
    rows = parquet(age=[1.0, 2.0, 3.0], size=["4", "x", "5"])
    (tmp_path / "a.parquet").write_bytes(rows)

    class Numbers(Asks):
        def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
            return {"inputs": torch.from_numpy(columns["size"].astype(np.float32))}

    workload = Numbers(AskedSettings())
    found = open_input(str(tmp_path), workload, with_digests=True)
    ids, columns = only_rows(found, workload, range(3))
    with pytest.raises(ValueError, match="could not convert") as raised:
        prepared(workload, columns, ids)
    notes = ["in row a.parquet#1", f"in {tmp_path}/a.parquet"]
    assert raised.value.__notes__ == notes
