"""Marks that many files use."""

from __future__ import annotations

from typing import Any

import pytest

SLOW = pytest.mark.slow
FULL_TABLE = pytest.mark.table


def slow(*values: Any) -> Any:
    """These parameters of a test, which only `make test-all` runs."""
    return pytest.param(*values, marks=SLOW)
