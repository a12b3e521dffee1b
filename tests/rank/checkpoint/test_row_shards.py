"""Files that have some rows of a tensor each, put together; those that lie are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.words import PYTHONS_WORDS
from train_core.errors import CheckpointError
from train_core.rank.checkpoint.reader import Assembly
from train_core.storage.records.tensor_file import lay_out

WHOLE = torch.arange(24, dtype=torch.float32).view(8, 3)


def a_file(first: int, last: int, **changes: Any) -> torch.Tensor:
    """A file with rows of WHOLE; what it says of them may be changed."""
    rows = WHOLE[first:last].to(changes.get("dtype", torch.float32))
    dtype = "F32" if rows.dtype == torch.float32 else "F64"
    said = changes.get("said", {"w": [first, 8, 3]})
    layout = lay_out({"w": (dtype, tuple(rows.shape))}, {"rows": json.dumps(said)})
    content = rows.contiguous().flatten().view(torch.uint8)
    head = torch.frombuffer(bytearray(layout.head), dtype=torch.uint8)
    return torch.cat([head, content])


def put_together(*files: torch.Tensor) -> torch.Tensor:
    assembly = Assembly()
    for number, file in enumerate(files):
        assembly.add(f"model-{number + 1:05d}-of-{len(files):05d}.safetensors", file)
    return assembly.tensors()["model/w"]


@given(st.sets(st.integers(1, 7)), st.randoms())
def test_rows_come_together_in_any_order(cuts: set[int], random: Any) -> None:
    ends = [0, *sorted(cuts), 8]
    files = [a_file(*ends[i : i + 2]) for i in range(len(ends) - 1)]
    random.shuffle(files)
    assert torch.equal(put_together(*files), WHOLE)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        pytest.param(
            [a_file(0, 4)],
            "^row 4 of the tensor 'model/w' is in no file$",
            id="the last rows are missing",
        ),
        pytest.param(
            [a_file(4, 8)],
            "^row 0 of the tensor 'model/w' is in no file$",
            id="the first rows are missing",
        ),
        pytest.param(
            [a_file(0, 3), a_file(4, 8)],
            "^row 3 of the tensor 'model/w' is in no file$",
            id="a row in the middle is missing",
        ),
        pytest.param(
            [a_file(0, 4), a_file(0, 4)],
            "^row 0 of the tensor 'model/w' is in two files$",
            id="the first half twice, the other never",
        ),
        pytest.param(
            [a_file(0, 8), a_file(2, 4)],
            "^row 2 of the tensor 'model/w' is in two files$",
            id="some rows twice",
        ),
        pytest.param(
            [a_file(0, 4), a_file(4, 8, dtype=torch.float64)],
            "^a file has torch.float64 of shape .* at row 4 of the tensor 'model/w'",
            id="of two types",
        ),
    ],
)
def test_rows_that_do_not_make_a_tensor_are_refused(files: list[torch.Tensor], told: str) -> None:
    with pytest.raises(CheckpointError, match=told):
        put_together(*files)


@pytest.mark.parametrize(
    "said",
    [
        pytest.param([4, 6, 3], id="rows behind the end"),
        pytest.param([-1, 8, 3], id="rows before the beginning"),
        pytest.param([4, 8, 4], id="longer rows"),
        pytest.param([4, 8, 3, 1], id="more dimensions"),
        pytest.param([4, 9, 3], id="another shape than the other file's"),
        pytest.param([4, 2**50, 3], id="more than there is memory"),
        pytest.param([4, 2**70, 3], id="more than there are numbers"),
        pytest.param([4], id="a shape without rows"),
        pytest.param([], id="nothing"),
        pytest.param(4, id="a number"),
        pytest.param(["four", "eight"], id="words"),
        pytest.param([1e999, 8], id="infinity"),
    ],
)
def test_a_file_that_lies_about_its_rows_is_refused(said: Any) -> None:
    for files in ([a_file(0, 4), a_file(4, 8, said={"w": said})], [a_file(4, 8, said={"w": said})]):
        with pytest.raises(CheckpointError) as why:
            put_together(*files)
        assert not PYTHONS_WORDS.search(str(why.value))


@pytest.mark.parametrize("said", [[], 5, None, "w"])
def test_what_does_not_say_rows_by_name_is_refused(said: Any) -> None:
    with pytest.raises(CheckpointError) as why:
        put_together(a_file(0, 8, said=said))
    assert not PYTHONS_WORDS.search(str(why.value))
