"""Fixtures of the workloads' tests."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

from tests.workloads.pages import EXAMPLES


@pytest.fixture(scope="session")
def examples_are_importable() -> Iterator[None]:
    """For workloads that are named as a reader names his own."""
    sys.path.insert(0, str(EXAMPLES))
    yield
    sys.path.remove(str(EXAMPLES))


@pytest.fixture
def one_thread(own_threads: None) -> None:
    torch.set_num_threads(1)
