"""What rows add to a sum, of which nearly all is the same: as the true negatives of 1,000 classes.

A block of rows keeps what most of its rows add, and of each row what is otherwise. So the memory
and the time of a sum grow with what rows add, and not with rows times classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy import sparse

BLOCK_VALUES = 2**20
"""So many values are in memory at once while rows are added."""


@dataclass(frozen=True)
class RowSums:
    """What each row adds to one state of a metric; the state's shape and type are `like`'s."""

    like: npt.NDArray[Any]
    common: sparse.csr_array
    """What each row of a block adds; a line for each block."""
    other: sparse.csr_array
    """What each row adds beside that."""
    block_of_row: npt.NDArray[np.int64]

    @classmethod
    def of(cls, entries: npt.NDArray[Any]) -> Self:
        """Of an array with an entry for each row."""
        num_rows = len(entries)
        flat = entries.reshape(num_rows, -1)
        size = max(1, BLOCK_VALUES // max(1, flat.shape[1]))
        commons, others = [], []
        for begin in range(0, num_rows, size):
            block = flat[begin : begin + size].astype(np.float64)
            # Of whole numbers a difference is exact.
            is_whole = entries.dtype.kind in "biu"
            most_add_one = 2 * np.count_nonzero(block == 1, axis=0) > len(block)
            common = np.where(most_add_one & is_whole, 1.0, 0.0)
            commons.append(sparse.csr_array(common[None]))
            others.append(sparse.csr_array(block - common))
        like = np.zeros(entries.shape[1:], entries.dtype)
        return cls(like, _stacked(commons), _stacked(others), np.arange(num_rows) // size)

    @classmethod
    def joined(cls, parts: Sequence[RowSums]) -> Self:
        """The rows of all parts, one after the other."""
        starts = np.cumsum([0, *(part.common.shape[0] for part in parts)])[:-1]
        blocks = [part.block_of_row + start for part, start in zip(parts, starts, strict=True)]
        return cls(
            parts[0].like,
            _stacked([part.common for part in parts]),
            _stacked([part.other for part in parts]),
            np.concatenate(blocks),
        )

    def __len__(self) -> int:
        return len(self.block_of_row)

    def total(self, counts: npt.NDArray[np.float64]) -> npt.NDArray[Any]:
        """The sum over all rows, each so often; of whole numbers without rounding, up to 2^53."""
        of_blocks = np.bincount(self.block_of_row, counts, self.common.shape[0])
        common, other = self._transposed
        found = common @ of_blocks + other @ counts
        return np.asarray(found).reshape(self.like.shape).astype(self.like.dtype)

    @cached_property
    def _transposed(self) -> tuple[sparse.csc_array, sparse.csc_array]:
        """Both once and for all: a bootstrap makes thousands of sums."""
        return self.common.T, self.other.T

    def differs(self, others: RowSums) -> npt.NDArray[np.bool_]:
        """Which rows add something else than the same rows of `others`."""
        # Of rows whose blocks are the same, what is common differs alike, and hardly anywhere.
        blocks = np.stack([self.block_of_row, others.block_of_row], axis=1)
        pairs, pair_of_row = np.unique(blocks, axis=0, return_inverse=True)
        common = self.common[pairs[:, 0]] - others.common[pairs[:, 1]]
        common.eliminate_zeros()
        found = self.other - others.other + common[pair_of_row]
        found.eliminate_zeros()
        return np.asarray(np.diff(found.indptr) > 0)


def _stacked(parts: Sequence[sparse.csr_array]) -> sparse.csr_array:
    return sparse.csr_array(sparse.vstack(parts, format="csr"))
