"""Whatever PyTorch it is made of is trained as plain autograd over the same shards trains it.

Or it is refused, by name. `tests/pytorch/oracle.py` is plain PyTorch.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.marks import SLOW
from tests.pytorch.__main__ import PAGE, page
from tests.pytorch.engine import differences, engine, oracle
from tests.pytorch.table import SECTIONS, TABLE
from train_core.errors import ConfigError
from train_core.storage.run_folder import RunFolder

ALL_SHARDS = (1, 2, 3)
ONE_IN = {"Situations": 4, "Optimizers": 10, "Schedules": 10, "Layers": 16, "Losses": 10}
"""Of these sections, `make test` takes so many rows' first one."""
COMPILES = "Situations: torch.compile"
"""It takes a minute: a compiler runs."""


def rows() -> Iterator[Any]:
    for section, cases in SECTIONS.items():
        for number, name in enumerate(cases):
            row = f"{section}: {name}"
            is_left_out = number % ONE_IN.get(section, 1) or row == COMPILES
            yield pytest.param(row, marks=SLOW if is_left_out else ())


@pytest.mark.promise("as-plain-torch")
@pytest.mark.parametrize("name", list(rows()))
def test_a_row_is_trained_as_plain_torch_trains_it_or_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = TABLE[name]
    if name == COMPILES:
        # With more of them torch keeps a pool of threads.
        monkeypatch.setattr("torch._inductor.config.compile_threads", 1)
    for num_shards in ALL_SHARDS:
        folder = RunFolder(str(tmp_path), f"on-{num_shards}")
        if case.refused and num_shards >= case.refused_from:
            with pytest.raises(ConfigError, match=case.refused):
                engine(name, num_shards, folder)
        elif case.is_compared:
            expected = oracle(name, num_shards)
            assert not differences(engine(name, num_shards, folder), expected), num_shards
            if case.resumes and num_shards != 2:
                resumed = RunFolder(str(tmp_path), f"cut-{num_shards}")
                cut = engine(name, num_shards, resumed, 1, 4)
                assert not differences(cut, expected), f"resumed on {num_shards} shards"


@pytest.mark.promise("pytorch-page")
def test_the_page_is_what_the_table_gives() -> None:
    assert PAGE.read_text() == page()
