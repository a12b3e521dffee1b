"""A file that a workload cannot read is named, with what is wrong with it, and the line that read.

The libraries that read files are given bytes, and say `'<Buffer>'`.
"""

from __future__ import annotations

import errno
import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from train_core import Batch, Columns, Settings, Workload
from train_core.datasets import faulty_files
from train_core.datasets.arrays import ArrayDataset
from train_core.datasets.faulty_files import naming, reading
from train_core.datasets.protocols import fetch
from train_core.errors import DataError, EvertrainError, UserCodeError, users_code
from train_core.policy.samples.randomness import SampleRandom
from train_core.rank.data.batches import prepare
from train_core.rank.data.data_processes import end_processes, load_ahead
from train_core.workload import indexed


class FromFilesSettings(Settings):
    folder: str
    way: str = "parquet"


class FromFiles(Workload[FromFilesSettings]):
    Settings = FromFilesSettings

    def sources(self) -> dict[str, str]:
        return {"rows": self.settings.folder}

    def dataset(self, split: str) -> Any:
        files = self.files("rows")
        if self.settings.way == "images":
            return Images(files)
        if self.settings.way == "csv":
            tables = [pd.read_csv(file.open(), dtype={"age": str}) for file in files]
            return ArrayDataset(age=pd.concat(tables)["age"].astype("float32").to_numpy())
        if self.settings.way == "pandas":
            whole = pd.concat([pd.read_parquet(file.open()) for file in files])
            return ArrayDataset(age=whole["age"].to_numpy().astype(np.float32))
        table = pa.concat_tables([pq.read_table(one) for one in [f.open() for f in files]])
        if self.settings.way == "another column":
            return ArrayDataset(size=table["size"].to_numpy())
        return ArrayDataset(age=table["age"].to_numpy())

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        if (columns["age"] > 90).any():
            raise ValueError("too old")
        return {"inputs": torch.tensor(columns["age"])}


class Images:
    def __init__(self, files: Any) -> None:
        self.files = files

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"image": np.asarray(Image.open(self.files[index].open()))}


def workload(folder: Path, way: str = "parquet") -> FromFiles:
    return FromFiles(FromFilesSettings(folder=str(folder), way=way))


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    for number in range(10):
        columns = {"age": np.arange(3.0) + number, "name": ["x", "y", "z"]}
        pq.write_table(pa.table(columns), tmp_path / f"part-{number}.parquet")
    return tmp_path


def refused(folder: Path, way: str = "parquet") -> str:
    with pytest.raises(DataError) as raised:
        fetch(indexed(workload(folder, way), "train"), np.arange(3))
    assert "\n" not in str(raised.value)
    return str(raised.value)


@pytest.mark.promise("bad-file-named")
@pytest.mark.parametrize("way", ["parquet", "pandas"])
def test_a_damaged_parquet_file_among_ten_is_named(tables: Path, way: str) -> None:
    damaged = tables / "part-3.parquet"
    damaged.write_bytes(damaged.read_bytes()[:-9])
    said = refused(tables, way)
    assert said.startswith(f"{damaged} is not a readable Parquet file: ")
    assert "(test_faulty_files.py, line" in said
    assert "in dataset)" in said or "in <listcomp>)" in said


@pytest.mark.promise("bad-file-named")
def test_damage_below_a_good_head_is_named_with_its_rows(tables: Path) -> None:
    damaged = tables / "part-7.parquet"
    pq.write_table(pa.table({"age": np.arange(3.0), "name": ["x"] * 3}), damaged, row_group_size=2)
    where = pq.ParquetFile(damaged).metadata.row_group(1).column(0).data_page_offset
    data = bytearray(damaged.read_bytes())
    data[where : where + 8] = b"\xff" * 8
    damaged.write_bytes(bytes(data))
    assert f"rows 2 to 2 of {damaged} is not a readable part of a Parquet file" in refused(tables)


@pytest.mark.promise("bad-file-named")
@pytest.mark.parametrize(
    ("columns", "how"),
    [
        ({"age": ["1", "2"], "name": ["x", "y"]}, "its column 'age' is string, and double there"),
        ({"age": [1.0, 2.0]}, "it has no column 'name'"),
        ({"age": [1.0], "name": ["x"], "more": [1]}, "it has a column 'more'"),
    ],
)
@pytest.mark.parametrize("number", [0, 4])
def test_a_file_with_other_columns_is_named_with_the_difference(
    tables: Path, columns: dict[str, Any], how: str, number: int
) -> None:
    odd = tables / f"part-{number}.parquet"
    pq.write_table(pa.table(columns), odd)
    usual = tables / f"part-{0 if number else 1}.parquet"
    assert f"{odd} is not like {usual}: {how}: ArrowInvalid: Schema at index" in refused(tables)


@pytest.mark.promise("bad-file-named")
@pytest.mark.parametrize("suffix", ["png", "jpg"])
def test_an_image_that_ends_early_is_named(tmp_path: Path, suffix: str) -> None:
    drawn = np.random.default_rng(0).integers(0, 255, (40, 40), np.uint8)
    for number in range(5):
        Image.fromarray(drawn).save(tmp_path / f"{number}.{suffix}")
    damaged = tmp_path / f"2.{suffix}"
    damaged.write_bytes(damaged.read_bytes()[:-400])
    said = refused(tmp_path, "images")
    assert said.startswith(f"{damaged} is not a readable image: OSError: ")
    assert "in __getitem__)" in said


@pytest.mark.promise("bad-file-named")
def test_a_value_that_is_no_number_is_named_with_file_and_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age\n1\n2\n")
    (tmp_path / "b.csv").write_text("age\n3\nabc\n")
    with pytest.raises(UserCodeError) as raised, users_code("prepare", ""):
        indexed(workload(tmp_path, "csv"), "train")
    assert f"'abc', in line 3 of {tmp_path}/b.csv, in the train split (test_faulty" in str(
        raised.value
    )


def test_a_mistake_in_the_code_blames_no_file(tables: Path) -> None:
    with pytest.raises(UserCodeError) as raised, users_code("prepare", ""):
        indexed(workload(tables, "another column"), "train")
    assert "KeyError: 'Field \"size\" does not exist in schema', in the train split (test_" in str(
        raised.value
    )


def test_the_search_for_the_file_at_fault_hides_no_error(tables: Path) -> None:
    gone = tables / "part-3.parquet"
    files = workload(tables).files("rows")
    gone.unlink()
    with (
        pytest.raises(pa.ArrowInvalid, match=r"^of the user's") as raised,
        reading(lambda: "the rows", lambda: files),
    ):
        raise pa.ArrowInvalid("of the user's")
    assert raised.value.__notes__ == ["in the rows"]
    # Whatever it is: here the list of the files.
    with (
        pytest.raises(pa.ArrowInvalid, match="of the user's"),
        reading(lambda: "the rows", _no_list),
    ):
        raise pa.ArrowInvalid("of the user's")
    # The search goes on behind a file that is gone.
    (tables / "part-5.parquet").write_bytes(b"PAR1")
    with (
        pytest.raises(DataError, match=r"part-5\.parquet is not a readable Parquet file"),
        reading(lambda: "the rows", lambda: files),
    ):
        raise pa.ArrowInvalid("of the user's")


def _no_list() -> Any:
    raise RuntimeError("of the list")


@pytest.mark.parametrize(
    "error",
    [
        ConnectionResetError("gone"),
        OSError("AWS Error NETWORK_CONNECTION during GetObject"),
        OSError(errno.ESTALE, "Stale file handle"),
        MemoryError(),
    ],
    ids=repr,
)
def test_a_connection_that_breaks_while_a_file_is_read_says_nothing_of_the_file(
    error: Exception,
) -> None:
    with pytest.raises(type(error)) as raised, naming("a.parquet", "Parquet file"):
        raise error
    assert raised.value is error


def test_the_search_looks_at_a_bounded_number_of_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def counted(url: str) -> Any:
        opened.append(url)
        return open_file(url)

    open_file = faulty_files._opened
    monkeypatch.setattr(faulty_files, "_opened", counted)
    for number in range(130):
        pq.write_table(pa.table({"age": [1.0]}), tmp_path / f"part-{number:03}.parquet")
    files = workload(tmp_path).files("rows")
    with pytest.raises(KeyError, match="lr"), reading(lambda: "the rows", lambda: files):
        raise KeyError("lr")
    assert not opened, "a mistake in the code is in no file"
    with pytest.raises(pa.ArrowInvalid), reading(lambda: "the rows", lambda: files):
        raise pa.ArrowInvalid("of the user's")
    assert len(set(opened)) == 100


def test_text_files_are_searched_up_to_a_number_of_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(faulty_files, "_MOST_READ_BYTES", 8)
    (tmp_path / "a.csv").write_text("age\n1\n2\n3\nabc\n")
    with pytest.raises(UserCodeError) as raised, users_code("prepare", ""):
        indexed(workload(tmp_path, "csv"), "train")
    assert "in line" not in str(raised.value).partition("(test")[0]
    assert f"in {tmp_path}/a.csv, in the train split" in str(raised.value)


def test_a_sample_that_prepare_refuses_is_named(tables: Path) -> None:
    old, columns = workload(tables), {"age": np.array([3.0, 95.0, 4.0])}
    with pytest.raises(ValueError, match="too old") as raised:
        prepare(old, columns, None, np.array([7, 5, 9]))
    assert raised.value.__notes__ == ["in sample 5"]
    with pytest.raises(ValueError, match="too old") as raised:
        prepare(old, {"age": np.array([95.0, 96.0])}, None, np.array([7, 5]))
    assert not getattr(raised.value, "__notes__", []), "a mistake in the code is no sample's"


class Failing(torch.utils.data.Dataset[Any]):
    def __getitem__(self, key: int) -> Any:
        if key == 1:
            return {}["lr"]
        if key == 2:
            raise DataError("a.png is not a readable image")
        if key == 3:
            raise OSError(errno.ESTALE, "Stale file handle")
        return key


def test_errors_of_data_workers_keep_their_class_and_name_their_line() -> None:
    found = list(load_ahead(Failing(), [0, 1, 2], num_processes=1, device=torch.device("cpu")))
    assert found[0] == 0
    assert type(found[1]) is UserCodeError
    assert "KeyError: 'lr' (test_faulty_files.py, line" in str(found[1])
    assert "in __getitem__)" in str(found[1])
    assert isinstance(found[1], EvertrainError)
    assert "Traceback" in found[1].traceback
    assert str(found[2]) == "a.png is not a readable image"
    assert type(found[2]) is DataError


def test_what_passes_by_itself_in_a_data_worker_is_a_connection_that_broke() -> None:
    items = load_ahead(Failing(), [3], num_processes=1, device=torch.device("cpu"))
    with pytest.raises(ConnectionError, match="Stale file handle"):
        list(items)
    end_processes(items)


def test_a_path_that_is_read_without_sources_is_named(tmp_path: Path) -> None:
    class Own:
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> dict[str, Any]:
            return {"image": np.asarray(Image.open(tmp_path / "x.png"))}

    (tmp_path / "x.png").write_bytes(io.BytesIO(b"no image").getvalue())
    with pytest.raises(DataError, match=f"^{tmp_path}/x.png is not a readable image"):
        fetch(Own(), np.arange(1))
