"""What one process trains exactly, several ranks of a real gloo group train to the same bits."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.marks import SLOW
from tests.pytorch.engine import config_of
from tests.ranks.processes import train

ROWS = [
    ("a head that some shards leave out", (3,)),
    ("a shared block under reentrant checkpointing", (2,)),
    ("a buffer that forward assigns anew", (3,)),
    ("a buffer that some shards register", (2, 3)),
    ("a buffer whose shape depends on the samples", (2, 3)),
    ("a part that thaws", (2,)),
    pytest.param("a head that forward leaves out", (2, 3), marks=SLOW),
    pytest.param("a head that some micro-batches leave out", (2, 3), marks=SLOW),
    pytest.param("weights with gaps, clipped", (2, 3), marks=SLOW),
    pytest.param("weights of several types", (2, 3), marks=SLOW),
    pytest.param("a part that is frozen and fixed meanwhile", (2, 3), marks=SLOW),
    pytest.param("an optimizer that keeps the gradient itself", (2, 3), marks=SLOW),
    pytest.param("random_split of samples that draw", (2, 3), marks=SLOW),
]


@pytest.mark.parametrize(("name", "workers"), ROWS)
def test_any_number_of_ranks_trains_a_row_alike(
    name: str, workers: tuple[int, ...], tmp_path: Path
) -> None:
    config = config_of(f"Situations: {name}", 3).model_dump(exclude_unset=True)
    found = [
        train(str(tmp_path), f"on-{number}", attempt=1, workers=number, config=config)
        for number in (1, *workers)
    ]
    assert all(one == found[0] for one in found)


def test_a_training_that_was_interrupted_goes_on_with_what_had_changed(tmp_path: Path) -> None:
    config = config_of("Situations: a part that thaws", 3).model_dump(exclude_unset=True)
    whole = train(str(tmp_path), "whole", attempt=1, workers=1, config=config)
    some = config | {"max_steps": 4}
    train(str(tmp_path), "cut", attempt=1, workers=3, config=some)
    cut = train(str(tmp_path), "cut", attempt=2, workers=2, config=config)
    assert cut == whole | {"resumed_from": 4}
