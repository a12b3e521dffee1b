"""Differences of tensors and values as rows of a table."""

from __future__ import annotations

import json
from collections.abc import Sequence

from evertrain_flows.cli.output.listings import Row
from train_core.differences import TensorDifference, ValueDifference


def tensor_rows(differences: Sequence[TensorDifference]) -> list[Row]:
    """A row for each tensor: how many elements differ, how far, and the first of them."""
    return [
        {
            "tensor": one.name,
            "differs in": one.kind,
            "elements": f"{one.num_different} of {one.num_elements}" if one.num_elements else None,
            "max difference": _largest(one),
            "first at": json.dumps(one.index) if one.num_elements else None,
            "A": _shown(one.a),
            "B": _shown(one.b),
        }
        for one in differences
    ]


def value_rows(differences: Sequence[ValueDifference]) -> list[Row]:
    """A row for each value."""
    return [
        {"name": one.name, "differs in": one.kind, "A": _shown(one.a), "B": _shown(one.b)}
        for one in differences
    ]


def _largest(one: TensorDifference) -> str | None:
    if one.num_elements == 0:
        return None
    return "not finite" if one.max_difference is None else f"{one.max_difference:.4g}"


def _shown(value: object) -> str | None:
    """In full: two numbers that differ must not look the same."""
    return value if value is None or isinstance(value, str) else json.dumps(value)
