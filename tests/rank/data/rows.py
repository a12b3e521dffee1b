"""Rows of an input that are prepared at once."""

from __future__ import annotations

from typing import Any

from train_core import Workload
from train_core.rank.data.inputs import Input, read_input
from train_core.rank.data.raw_columns import RawColumns


def only_rows(
    found: Input, workload: Workload[Any], samples: range
) -> tuple[list[str | None], RawColumns]:
    """The ids and the columns of rows that are all of one piece."""
    (rows,) = read_input(found, workload, samples)
    return rows.ids, rows.columns
