"""On a GPU, too, a row is trained as plain PyTorch trains it there, or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.pytorch.engine import differences, engine, oracle
from tests.pytorch.table import TABLE
from train_core.errors import ConfigError
from train_core.storage.run_folder import RunFolder

# torch keeps a GPU's threads, and the processes that compile for it.
pytestmark = [
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here"),
    pytest.mark.leaves,
]


NOT_EXACT = "has no deterministic algorithm"


@pytest.mark.promise("as-plain-torch")
@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.parametrize("name", TABLE)
def test_a_row_is_trained_on_a_gpu_as_plain_torch_trains_it_there(
    name: str, num_shards: int, tmp_path: Path
) -> None:
    case = TABLE[name]
    try:
        found = engine(name, num_shards, RunFolder(str(tmp_path), "run"), gpus=1)
    except ConfigError as error:
        if num_shards >= case.refused_from and case.refused and case.refused in str(error):
            return
        if NOT_EXACT not in str(error):
            raise
        pytest.skip(str(error))
    if not case.is_compared:
        return
    # What is refused on a CPU may be trained here: an expanded weight gets memory of its own.
    expected = oracle(name, num_shards, gpus=1)
    assert not differences(found, expected)
    if case.resumes:
        cut = engine(name, num_shards, RunFolder(str(tmp_path), "cut"), 1, 4, gpus=1)
        assert not differences(cut, expected), "resumed"
