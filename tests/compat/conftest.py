"""A run folder, and attempts at it whose ranks are threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.compat.reports.ranks import Ranks
from tests.rank.alone import create
from train_core import TrainConfig
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import begin_attempt, next_attempt


@pytest.fixture
def folder(storage_url: str) -> RunFolder:
    found = RunFolder(storage_url, "run")
    create(found, TrainConfig(train_fn="some.module:function", monitor="loss"))
    return found


@pytest.fixture
def start(folder: RunFolder) -> Iterator[Callable[..., Ranks]]:
    """Begins an attempt with as many ranks."""
    made: list[Ranks] = []
    held = begin_attempt(folder)

    def begin(world_size: int, **change: Any) -> Ranks:
        if made:
            next_attempt(folder, held)
        made.append(Ranks(folder, world_size, attempt=held.attempt, **change))
        return made[-1]

    yield begin
    for ranks in made:
        ranks.close()
    held.release()
