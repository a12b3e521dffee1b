"""Sums of any choice of rows are those of the rows themselves, in little memory."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_core.scoring import row_sums
from train_core.scoring.row_sums import RowSums

SHAPES = ((), (1,), (7,), (3, 4))
TYPES = ("int64", "int32", "bool", "float32", "float64")


def rows_of(seed: int, num_rows: int, shape: tuple[int, ...], kind: str) -> np.ndarray:
    random = np.random.default_rng(seed)
    # As true negatives: nearly all are one, in some columns.
    found = random.integers(0, 2, (1, *shape)) ^ (random.random((num_rows, *shape)) < 0.2)
    if kind.startswith("float"):
        found = found * random.standard_normal((num_rows, *shape))
    return found.astype(kind)


@pytest.mark.promise("gate-rows")
@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("shape", SHAPES)
@given(seed=st.integers(0, 2**31), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_the_sum_of_any_choice_is_numpys(
    kind: str, shape: tuple[int, ...], seed: int, sizes: list[int]
) -> None:
    parts = [rows_of(seed + place, size, shape, kind) for place, size in enumerate(sizes)]
    rows = np.concatenate(parts)
    sums = RowSums.joined([RowSums.of(part) for part in parts])
    assert len(sums) == len(rows)
    chosen = np.random.default_rng(seed).integers(0, len(rows), len(rows))
    counts = np.bincount(chosen, minlength=len(rows)).astype(np.float64)
    found, expected = sums.total(counts), rows[chosen].astype(np.float64).sum(0).astype(kind)
    assert (found.dtype, found.shape) == (expected.dtype, expected.shape)
    if kind.startswith("float"):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
    else:
        assert np.array_equal(found, expected)
    # However the rows were cut.
    assert not sums.differs(RowSums.of(rows)).any()


def test_rows_that_differ_are_found() -> None:
    rows = rows_of(1, 20, (5,), "int64")
    other = rows.copy()
    other[3, 2] += 1
    other[19, 0] += 1
    differs = RowSums.of(rows).differs(
        RowSums.joined([RowSums.of(other[:7]), RowSums.of(other[7:])])
    )
    assert np.flatnonzero(differs).tolist() == [3, 19]


@pytest.mark.slow
def test_a_thousand_classes_take_the_memory_of_a_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_sums, "BLOCK_VALUES", 2**16)
    # True negatives: all classes but that of the row and the one that was predicted.
    rows = np.ones((1000, 1000), np.int64)
    rows[np.arange(1000), np.arange(1000)] = 0
    sums = RowSums.of(rows)
    kept = sum(one.data.nbytes + one.indices.nbytes for one in (sums.common, sums.other))
    assert kept < rows.nbytes / 30
