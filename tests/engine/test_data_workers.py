"""The processes that fetch batches ahead: they end with their rank, however it ends."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

RANK = """
import torch
from torch.utils.data import Dataset
from train_core.engine.batches import load_ahead

class Batches(Dataset):
    def __getitem__(self, key):
        return {"x": torch.zeros(1)}

batches = load_ahead(Batches(), range(1000), num_processes=2, device=torch.device("cpu"))
next(batches)
print("fetched", flush=True)
input()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_they_end_at_once_with_a_rank_that_is_killed() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", RANK], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as rank:
        assert rank.stdout is not None
        assert rank.stdout.readline() == b"fetched\n"
        fetching = psutil.Process(rank.pid).children()
        assert len(fetching) == 2
        rank.kill()
        # By itself a process that fetches looks for its parent every five seconds.
        _, alive = psutil.wait_procs(fetching, timeout=2)
        assert not alive
