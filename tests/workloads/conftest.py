"""Fixtures of the workloads' tests."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def real_data() -> Path:
    folder = os.environ.get("EVERTRAIN_DATA")
    if not folder:
        pytest.skip("EVERTRAIN_DATA is not set: the folder that has mnist and fashion-mnist")
    return Path(folder)
