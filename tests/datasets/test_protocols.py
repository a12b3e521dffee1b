"""How a dataset is read: a batch of columns at a time, or sample by sample."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from train_core.datasets.arrays import ArrayDataset
from train_core.datasets.protocols import gives_columns

COLUMNS = ArrayDataset(x=np.arange(4))


class Samples(torch.utils.data.Dataset[dict[str, Any]]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"x": index}


class Listed(Samples):
    def __getitems__(self, indices: Any) -> list[dict[str, Any]]:
        return [self[int(index)] for index in indices]


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (COLUMNS, True),
        (torch.utils.data.Subset(COLUMNS, [1, 2]), True),  # type: ignore[arg-type]  # one but by name
        (Samples(), False),
        (Listed(), False),
        (torch.utils.data.Subset(Samples(), [1, 2]), False),
        (torch.utils.data.Subset(Listed(), [1, 2]), False),
        (torch.utils.data.ConcatDataset([Samples(), Listed()]), False),
        (torch.utils.data.StackDataset(x=Samples(), y=Listed()), False),
    ],
)
def test_only_columns_are_read_a_batch_at_a_time(dataset: Any, expected: bool) -> None:
    assert gives_columns(dataset) == expected
