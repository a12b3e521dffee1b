"""The processes that fetch batches ahead: they end with their rank, however it ends."""

from __future__ import annotations

import sys

import psutil
import pytest

from tests.commands import said_by, talking
from tests.marks import slow

RANK = """
import os
import sys
import time

import torch
from torch.utils.data import Dataset
from train_core.rank.data.data_processes import load_ahead

rank = os.getpid()

def begin_after_the_rank_is_gone():
    while os.getppid() == rank:
        time.sleep(0.01)

class Batches(Dataset):
    def __getitem__(self, key):
        return {"x": torch.zeros(1)}

if sys.argv[1] == "starting":
    os.register_at_fork(after_in_child=begin_after_the_rank_is_gone)
batches = load_ahead(Batches(), range(1000), num_processes=2, device=torch.device("cpu"))
if sys.argv[1] == "fetching":
    next(batches), next(batches)  # one of each process
print("ready", flush=True)
input()
"""


def is_alive(process: psutil.Process) -> bool:
    """Not if it has ended, and only whoever adopted it has not taken note of that yet."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
@pytest.mark.parametrize("they_are", [slow("starting"), "fetching"])
def test_they_end_at_once_with_a_rank_that_is_killed(they_are: str) -> None:
    with talking(RANK, they_are) as rank:
        assert said_by(rank) == "ready"
        processes = psutil.Process(rank.pid).children()
        assert len(processes) == 2
        rank.kill()
        # By itself a process that fetches looks for its parent every five seconds.
        _, left = psutil.wait_procs(processes, timeout=2)
        assert not [process for process in left if is_alive(process)]
