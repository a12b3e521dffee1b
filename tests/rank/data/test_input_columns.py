"""What new files give to `prepare` is what training gave, and no row depends on another."""

from __future__ import annotations

import io
import json
import os
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image
from pydantic import Field

from train_core import ArrayDataset, Batch, Columns, Settings, Workload, read_columns, read_image
from train_core.datasets.forms import forms_of
from train_core.datasets.recorded import RecordedData
from train_core.datasets.sources import PinnedFiles
from train_core.errors import DataError
from train_core.policy.samples.randomness import SampleRandom
from train_core.rank.data.batches import prepare
from train_core.rank.data.inputs import Rows, open_input, read_input
from train_core.rank.data.raw_columns import prepared
from train_core.requests import KeptColumns
from train_core.storage.objects.store import Store


class Takes(Settings):
    asks: tuple[str, ...] = Field(default=())


class Anything(Workload[Takes]):
    """Asks for some columns, whatever they are."""

    Settings = Takes

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        lengths = [len(columns[name]) for name in self.settings.asks]
        return {"inputs": torch.zeros(lengths[0])}


def recorded(*asks: str, **columns: npt.NDArray[Any]) -> Anything:
    """The workload of a run that was trained on such columns."""
    workload = Anything(Takes(asks=asks or tuple(columns)))
    forms = forms_of(columns)
    workload._recorded = RecordedData("run", {"validation": {"columns": forms}}, None)
    return workload


def read(folder: Path, workload: Workload[Any], **keeps: Any) -> list[Rows]:
    """All rows of a folder, read as one batch."""
    found = open_input(str(folder), workload, KeptColumns(**keeps), with_digests=True)
    return list(read_input(found, workload, range(found.num_rows)))


def values(rows: Rows, column: str) -> list[Any]:
    found: list[Any] = rows.columns[column].tolist()
    return found


def write(path: Path, **columns: Any) -> None:
    pq.write_table(pa.table(columns), path)


def lists(*rows: list[int]) -> npt.NDArray[Any]:
    found = np.empty(len(rows), object)
    for index, row in enumerate(rows):
        found[index] = np.array(row)
    return found


@pytest.mark.promise("any-column")
def test_lists_of_one_length_stay_lists_where_training_had_many_lengths(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", tokens=[[1, 2], [3, 4], [5]])
    workload = recorded(tokens=lists([1], [2, 3]))
    found = open_input(str(tmp_path), workload, with_digests=True)
    for samples in (range(2), range(3), range(2, 3)):
        (rows,) = read_input(found, workload, samples)
        assert rows.columns["tokens"].dtype == object
        assert [one.tolist() for one in rows.columns["tokens"]] == (
            [[1, 2], [3, 4], [5]][samples.start : samples.stop]
        )


@pytest.mark.promise("any-column")
def test_what_training_read_by_read_columns_is_what_new_files_give(tmp_path: Path) -> None:
    """In Parquet, and where it can be written so, in CSV and as JSON lines."""
    table = pa.table(
        {
            "zip": ["01067", None, "9"],
            "age": pa.array([31, None, 7], pa.int32()),
            "price": pa.array([Decimal("1.50"), None, Decimal("2.25")]),
            "seen": pa.array([date(2026, 1, 2), None, date(2026, 3, 4)]),
            "is_new": [True, None, False],
            "kind": pa.array(["a", None, "b"]).dictionary_encode(),
            "tokens": [[1, 2], [], [3]],
        }
    )
    (tmp_path / "new").mkdir()
    pq.write_table(table, tmp_path / "new" / "a.parquet")
    trained = read_columns([tmp_path / "new" / "a.parquet"])
    workload = recorded(**trained)
    (rows,) = read(tmp_path / "new", workload)
    assert ArrayDataset(**rows.columns).digest() == ArrayDataset(**trained).digest()

    few = ["zip", "age", "seen"]
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "a.csv").write_text(
        "zip,age,seen\n01067,31,2026-01-02\n9,,2026-03-04\n9,7,\n"
    )
    (rows,) = read(tmp_path / "csv", recorded(**{name: trained[name] for name in few}))
    assert values(rows, "zip") == ["01067", "9", "9"]
    assert {name: rows.columns[name].dtype for name in few} == {
        name: trained[name].dtype for name in few
    }

    (tmp_path / "lines").mkdir()
    # As pandas writes times, which pyarrow takes for texts.
    lines = [
        {"zip": "9", "tokens": [4, 5], "seen": "2026-01-02T00:00:00.000"},
        {"zip": None, "tokens": [6, 7], "seen": None},
    ]
    (tmp_path / "lines" / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    (rows,) = read(tmp_path / "lines", recorded("zip", "tokens", "seen", **trained))
    assert rows.columns["seen"].dtype == trained["seen"].dtype
    assert np.isnat(rows.columns["seen"]).tolist() == [False, True]
    assert values(rows, "zip") == ["9", None]
    assert [one.tolist() for one in rows.columns["tokens"]] == [[4, 5], [6, 7]]


@pytest.mark.promise("any-column")
@pytest.mark.parametrize(
    ("trained", "new", "words"),
    [
        (np.array(["a"], object), [1], "'x' of .*b.parquet holds numbers, and held texts"),
        (np.array([1.0]), ["a"], "'x' of .*b.parquet holds texts, and held numbers"),
        (np.array([1]), [b"a"], "holds bytes, and held numbers"),
        (np.array(["2026-01-01"], "M8[D]"), ["01/02/2026"], "holds texts, and held times"),
        (np.array(["a"], object), [["a"]], "holds lists, and held texts"),
    ],
)
def test_another_kind_of_values_is_refused_with_column_and_file(
    trained: npt.NDArray[Any], new: list[Any], words: str, tmp_path: Path
) -> None:
    write(tmp_path / "b.parquet", x=new)
    with pytest.raises(DataError, match=words):
        open_input(str(tmp_path), recorded(x=trained))
    # The types of the first rows may not tell it, those of later ones do.
    write(tmp_path / "b.parquet", x=pa.array([None, None, *new]))
    workload = recorded(x=trained)
    found = open_input(str(tmp_path), Anything(Takes(asks=("x",))), with_digests=True)
    with pytest.raises(DataError, match=words):
        list(read_input(found, workload, range(3)))


def test_targets_of_new_files_may_be_anything(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", x=[1.0], label=["later"])
    (rows,) = read(tmp_path, recorded("x", x=np.array([1.0]), label=np.array([1])))
    assert values(rows, "x") == [1.0]


class Codes(Anything):
    """Looks a number up, as in an embedding."""

    def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
        return {"inputs": torch.from_numpy(columns["code"].astype(np.int64))}


@pytest.mark.promise("missing-is-no-number")
def test_a_missing_value_that_becomes_an_integer_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", code=[1, 2, None])
    workload = Codes(Takes())
    found = open_input(str(tmp_path / "a.parquet"), workload, with_digests=True)
    (rows,) = read_input(found, workload, range(1))
    assert prepared(workload, rows.columns, rows.ids)["inputs"].tolist() == [1]
    (rows,) = read_input(found, workload, range(3))
    where = r"a\.parquet: prepare makes an integer of .*column 'code' of a.parquet#2\)"
    with pytest.raises(DataError, match=where):
        prepared(workload, rows.columns, rows.ids)


@pytest.mark.promise("missing-is-no-number")
@pytest.mark.parametrize("way", ["numpy", "torch", "time"])
def test_a_sample_whose_missing_value_becomes_an_integer_is_named(way: str) -> None:
    class Casts(Anything):
        def prepare(self, columns: Columns, random: SampleRandom | None) -> Batch:
            code = columns["code"]
            if way == "torch":
                return {"inputs": torch.from_numpy(code).long()}
            return {"inputs": torch.from_numpy(code.astype(np.int64))}

    code = np.array([0.0, 1.0, np.nan])
    if way == "time":
        code = np.array(["2026-01-01", "2026-01-02", "NaT"], "M8[D]")
    with pytest.raises(DataError, match="column 'code' of sample 9"):
        prepare(Casts(Takes()), {"code": code}, None, np.array([7, 8, 9]))


@pytest.mark.promise("rows-apart")
def test_rows_of_files_with_other_columns_are_prepared_apart(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", x=[1, 2])
    write(tmp_path / "b.parquet", x=[3, 4], bonus=[5.0, 6.0])
    write(tmp_path / "c.parquet", x=[7, 8], bonus=[9.0, 10.0])
    write(tmp_path / "d.parquet", x=[1.5], bonus=[9.0])
    pieces = read(tmp_path, recorded(x=np.array([1])))
    assert [sorted(rows.columns) for rows in pieces] == [["x"], ["bonus", "x"], ["bonus", "x"]]
    assert [values(rows, "x") for rows in pieces] == [[1, 2], [3, 4, 7, 8], [1.5]]
    assert [rows.ids[0] for rows in pieces] == ["a.parquet#0", "b.parquet#0", "d.parquet#0"]


def test_a_column_called_id_is_a_column_and_the_id(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", id=[7, None, 8], x=[1.0, 2.0, 3.0])
    (rows,) = read(tmp_path, recorded("id", "x", id=np.array([1]), x=np.array([1.0])))
    assert rows.ids == ["7", None, "8"]
    assert values(rows, "id")[::2] == [7, 8]


@pytest.mark.promise("ids-kept")
def test_the_ids_and_columns_that_are_asked_for_are_kept_with_their_types(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", customer=[7, 8], kind=pa.array(["p", None]).dictionary_encode())
    write(tmp_path / "b.parquet", customer=pa.array([9], pa.int32()), kind=["q"])
    pieces = read(
        tmp_path, recorded("customer"), id_column="customer", columns=("customer", "kind")
    )
    kept = pa.concat_tables([rows.kept for rows in pieces])
    assert [one for rows in pieces for one in rows.ids] == ["7", "8", "9"]
    assert kept.to_pydict() == {"customer": [7, 8, 9], "kind": ["p", None, "q"]}
    assert kept.schema.field("kind").type == pa.string()


@pytest.mark.promise("ids-kept")
def test_ids_and_kept_columns_of_text_tables_are_what_is_written_there(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("id,code,x\n007,01,1\n,1e3,2\n")
    (rows,) = read(tmp_path, recorded("x", x=np.array([1.0])), columns=("code",))
    assert rows.ids == ["007", ""]
    assert rows.kept.to_pydict() == {"code": ["01", "1e3"]}
    assert values(rows, "x") == [1.0, 2.0]


@pytest.mark.promise("ids-kept")
def test_an_id_keeps_its_zeros_though_training_had_numbers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("customer,x\n000123,1\n")
    trained = {"customer": np.array([123]), "x": np.array([1.0])}
    keeps = {"id_column": "customer", "columns": ("customer",)}
    (rows,) = read(tmp_path, recorded("customer", "x", **trained), **keeps)
    assert rows.ids == ["000123"]
    assert rows.kept.to_pydict() == {"customer": ["000123"]}
    assert values(rows, "customer") == [123]


@pytest.mark.promise("any-column")
def test_a_column_that_lacks_all_values_has_the_type_of_training(tmp_path: Path) -> None:
    trained = {
        "age": np.array([1.5], np.float32),
        "code": np.array([1]),
        "seen": np.array(["2026-01-01"], "M8[D]"),
    }
    (tmp_path / "csv").mkdir()
    (tmp_path / "csv" / "a.csv").write_text("age,code,seen\nNA,,\n")
    (tmp_path / "parquet").mkdir()
    nulls = {name: pa.array([None], pa.null()) for name in trained}
    write(tmp_path / "parquet" / "a.parquet", **nulls)
    for folder in ("csv", "parquet"):
        (rows,) = read(tmp_path / folder, recorded(**trained))
        found = [rows.columns[name].dtype for name in trained]
        assert found == [np.float32, np.float64, np.dtype("M8[D]")]
        assert all(np.isnan(rows.columns[name]).all() for name in trained)


@pytest.mark.promise("any-column")
def test_times_have_the_unit_of_training_or_are_refused(tmp_path: Path) -> None:
    trained = {"seen": np.array(["2026-01-01"], "M8[ns]")}
    (tmp_path / "a.csv").write_text("seen\n2026-01-02 03:04:05\n")
    (rows,) = read(tmp_path, recorded(**trained))
    assert rows.columns["seen"].dtype == np.dtype("M8[ns]")
    assert rows.columns["seen"][0] == np.datetime64("2026-01-02T03:04:05")
    days = {"seen": np.array(["2026-01-01"], "M8[D]")}
    with pytest.raises(DataError, match="column 'seen' has times in datetime64"):
        open_input(str(tmp_path), recorded(**days))


@pytest.mark.promise("any-column")
def test_texts_that_look_like_times_are_texts_in_json_lines_too(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"id": "2024-01-01", "note": "2025-02-03", "n": 7}\n')
    (rows,) = read(tmp_path, recorded("note", note=np.array(["a"], object)), columns=("n",))
    assert rows.ids == ["2024-01-01"]
    assert values(rows, "note") == ["2025-02-03"]
    assert rows.kept.to_pydict() == {"n": [7]}


def test_two_columns_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,x\n1,2\n")
    with pytest.raises(DataError, match="there are two columns 'x'"):
        open_input(str(tmp_path), recorded("x"))


@pytest.mark.promise("ids-kept")
def test_a_file_without_a_column_that_is_asked_for_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", x=[1.0], customer=[1])
    write(tmp_path / "b.parquet", x=[1.0])
    for keeps in (KeptColumns(id_column="customer"), KeptColumns(columns=("customer",))):
        with pytest.raises(DataError, match=r"b\.parquet has no column 'customer'.*it has x$"):
            open_input(str(tmp_path), recorded("x"), keeps)
    write(tmp_path / "b.parquet", x=[1.0], customer=["1"])
    with pytest.raises(DataError, match="have no type in common"):
        open_input(str(tmp_path), recorded("x"), KeptColumns(columns=("customer",)))


def png(array: npt.NDArray[Any], **how: Any) -> bytes:
    data = io.BytesIO()
    Image.fromarray(array).save(data, "PNG", **how)
    return data.getvalue()


@pytest.mark.promise("deep-images")
def test_deep_grey_is_read_as_it_is(tmp_path: Path) -> None:
    deep = np.array([[0, 300], [40_000, 65_535]], np.uint16)
    (tmp_path / "a.png").write_bytes(png(deep))
    (rows,) = read(tmp_path, recorded("image"))
    assert rows.columns["image"].dtype == np.uint16
    assert (rows.columns["image"][0] == deep).all()
    assert (read_image(tmp_path / "a.png") == deep).all()


@pytest.mark.promise("deep-images")
def test_deep_colours_are_refused(tmp_path: Path) -> None:
    # Pillow reads such a file, and writes none: one pixel, by the format's specification.
    (tmp_path / "a.png").write_bytes(deep_colour())
    with pytest.raises(DataError, match=r"a\.png has colours of 16 bits, of which 8 would be lost"):
        open_input(str(tmp_path), recorded("image"))


def deep_colour() -> bytes:
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        length, crc = struct.pack(">I", len(data)), struct.pack(">I", zlib.crc32(kind + data))
        return length + kind + data + crc

    header = struct.pack(">IIBBBBB", 1, 1, 16, 2, 0, 0, 0)
    pixel = zlib.compress(b"\0" + b"\x12\x34" * 3)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")
    )


def test_a_picture_is_turned_upright(tmp_path: Path) -> None:
    picture = np.arange(6, dtype=np.uint8).reshape(2, 3)
    turned = Image.Exif()
    turned[0x0112] = 6  # The camera lay on its side: turn it by 90 degrees, clockwise.
    (tmp_path / "a.png").write_bytes(png(picture, exif=turned))
    (rows,) = read(tmp_path, recorded("image"))
    assert (rows.columns["image"][0] == np.rot90(picture, -1)).all()


def test_pictures_of_other_sizes_are_prepared_apart(tmp_path: Path) -> None:
    for name, size in (("a", 2), ("b", 2), ("c", 3)):
        (tmp_path / f"{name}.png").write_bytes(png(np.zeros((size, size), np.uint8)))
    pieces = read(tmp_path, recorded("image"))
    assert [rows.columns["image"].shape for rows in pieces] == [(2, 2, 2), (1, 3, 3)]


def test_a_name_that_is_no_utf8_is_an_id_all_the_same(tmp_path: Path) -> None:
    name = os.fsdecode(b"caf\xe9.png")
    (tmp_path / name).write_bytes(png(np.zeros((2, 2), np.uint8)))
    workload = recorded("image")
    found = open_input(str(tmp_path), workload, with_digests=True)
    (rows,) = read_input(found, workload, range(1))
    assert rows.ids == [r"caf\xe9.png"]
    assert json.loads(json.dumps(found.describe()))["files"][0]["name"] == r"caf\xe9.png"
    pa.array(rows.ids, pa.string())


def test_files_without_rows_have_none(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", x=pa.array([], pa.float64()))
    assert read(tmp_path, recorded("x")) == []


def test_forms_tell_numbers_by_their_type_and_objects_by_a_word() -> None:
    columns = {
        "x": np.zeros(1, np.float32),
        "image": np.zeros((1, 2, 2), np.uint8),
        "s": np.array(["a"], object),
        "nothing": np.array([None]),
    }
    assert forms_of(columns) == {"x": "<f4", "image": "arrays of |u1", "s": "texts"}


@pytest.mark.promise("any-column")
def test_texts_and_tables_are_read_alike_on_any_storage(storage_url: str) -> None:
    store = Store(storage_url)
    table = pa.table({"city": ["Åre", None], "number": [1, 2]})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    store.write("a.parquet", buffer.getvalue())
    store.write("b.csv", "city,number\nÅre,1\n,2\n".encode())
    store.write("c.jsonl", '{"city":"Åre","number":1}\n{"number":2}\n'.encode())
    trained = recorded(city=np.array(["Åre", None], object), number=np.array([1, 2]))
    for kind in ("a.parquet", "b.csv", "c.jsonl"):
        found = open_input(f"{storage_url}/{kind}", trained, with_digests=True)
        (rows,) = read_input(found, trained, range(found.num_rows))
        assert [city or None for city in values(rows, "city")] == ["Åre", None]
        assert values(rows, "number") == [1, 2]
    # Only one kind of them was read, without a word.
    with pytest.raises(
        DataError, match=r"several kinds, a\.parquet \(parquet\) and b\.csv \(text\)"
    ):
        open_input(storage_url, trained)
    listed = PinnedFiles.listed({"tables": f"{storage_url}/*.parquet"})
    assert read_columns(listed.files("tables"))["city"].tolist() == ["Åre", None]
