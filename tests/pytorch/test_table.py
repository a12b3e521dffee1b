"""Whatever PyTorch it is made of is trained as plain autograd over the same shards trains it.

Or it is refused, by name. `tests/pytorch/oracle.py` is plain PyTorch.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.pytorch.engine import differences, engine, oracle
from tests.pytorch.table import TABLE
from train_core.errors import ConfigError
from train_core.storage.run_folder import RunFolder


@pytest.mark.parametrize("name", TABLE)
def test_a_row_is_trained_as_plain_torch_trains_it_or_is_refused(name: str, tmp_path: Path) -> None:
    case = TABLE[name]
    for num_shards in (1, 2, 3):
        folder = RunFolder(str(tmp_path), f"on-{num_shards}")
        if case.refused and num_shards >= case.refused_from:
            with pytest.raises(ConfigError, match=case.refused):
                engine(name, num_shards, folder)
            continue
        if not case.is_compared:
            continue
        expected = oracle(name, num_shards)
        found = engine(name, num_shards, folder)
        assert not differences(found, expected), f"on {num_shards} shards"
        if case.resumes:
            resumed = engine(name, num_shards, RunFolder(str(tmp_path), f"cut-{num_shards}"), 1, 4)
            assert not differences(resumed, expected), f"resumed on {num_shards} shards"
