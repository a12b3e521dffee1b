"""The digest of columns that hold objects."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests import commands
from train_core.datasets.arrays import ArrayDataset
from train_core.errors import DataError

_OF_SETS = """
import numpy as np
from train_core.datasets.arrays import ArrayDataset
column = np.empty(3, object)
column[:] = [set("abcdefg"), {frozenset("abcdefg"), frozenset("xyz")}, {("a", 1), ("b", 2)}]
print(ArrayDataset(x=column).digest())
"""


def digest(make: Callable[[], Any]) -> str:
    column = np.empty(1, object)
    column[0] = make()
    return ArrayDataset(x=column).digest()


def test_sets_have_one_digest_in_every_process() -> None:
    found = {
        commands.succeed(
            [sys.executable, "-c", _OF_SETS], env=os.environ | {"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(found) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({1, 2}, {1, 3}),
        ({1}, [1]),
        ({"1"}, {1}),
        ({frozenset("ab")}, {frozenset("ac")}),
        ({(1, 2)}, {(2, 1)}),
        (set(), [[]]),
    ],
)
def test_what_differs_has_another_digest(one: Any, other: Any) -> None:
    assert digest(lambda: one) != digest(lambda: other)


def test_a_set_of_unknown_objects_is_refused() -> None:
    with pytest.raises(DataError, match="column 'x' holds a object"):
        digest(lambda: {object()})
