"""Some samples of a dataset, as a dataset."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from train_core.datasets.protocols import Dataset, WrappedDataset


class FewSamples(WrappedDataset):
    """The samples of `whole` at `indices`, read as `whole` reads its own."""

    def __init__(self, whole: Dataset, indices: npt.NDArray[np.int64]) -> None:
        super().__init__(whole)
        self._indices = indices
        if hasattr(whole, "__getitems__"):
            # Only then: who reads a dataset asks whether it has the method.
            self.__getitems__ = lambda places: whole.__getitems__(indices[places])

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, place: int, /) -> Any:
        return super().__getitem__(int(self._indices[place]))
