"""How a dataset is read: a batch of columns at a time, or sample by sample."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch

from train_core.datasets.arrays import ArrayDataset
from train_core.datasets.protocols import gives_columns
from train_core.errors import DataError

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


CONTENT = """
import datetime, numpy as np
from train_core import ArrayDataset
columns = {"texts": np.array(["a", "longer than one", None], object)}
columns["lists"] = np.empty(3, object)
columns["lists"][:] = [[1, {"x": None}], np.arange(4), (2.5, np.float32(1), {3})]
columns["days"] = np.array(["2026-01-01"] * 3, "datetime64[D]")
columns["times"] = np.array([datetime.datetime(2026, 1, day) for day in (1, 2, 3)], object)
print(ArrayDataset(**columns).digest())
"""


def test_columns_of_objects_have_the_digest_of_their_content_in_every_process() -> None:
    digests = {
        subprocess.check_output([sys.executable, "-c", CONTENT, *["x"] * number], text=True)
        for number in range(2)
    }
    changed = subprocess.check_output(
        [sys.executable, "-c", CONTENT.replace("arange(4)", "arange(5)")], text=True
    )
    assert len(digests) == 1
    assert changed not in digests


def test_a_column_of_objects_without_a_content_is_refused_by_name() -> None:
    column = np.array([object()], object)
    with pytest.raises(DataError, match=r"column 'odd' holds a object, of which .* texts, dates"):
        ArrayDataset(odd=column).digest()
