"""Scoring rows of a thousand classes takes little memory."""

from __future__ import annotations

import sys

import pytest

from tests import commands

# In a process of its own, whose memory nothing else has raised.
PROGRAM = """
import resource
import torch
from torchmetrics.classification import MulticlassF1Score
from train_core.rank.metrics.evaluation_loop import state_of
from train_core.scoring.gate_rows import RowScoring
from train_core.workloads.digits import Digits

class Thousand(Digits):
    class_names = tuple(map(str, range(1000)))

    def metric_inputs(self, outputs, batch):
        return outputs, batch["targets"]

random = torch.Generator().manual_seed(0)
workload, metric, scored = Thousand(Digits.Settings()), MulticlassF1Score(1000), RowScoring("f1")

def add_rows(num_rows):
    targets = torch.randint(1000, (num_rows,), generator=random)
    outputs = torch.randn(num_rows, 1000, generator=random)
    scored.add(workload, metric, outputs, {"targets": targets})

add_rows(10)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
add_rows(150)
result = scored.result(metric, state_of(metric))
assert result.num_rows == 160 and not result.failure, result.failure
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.slow
@pytest.mark.promise("gate-rows")
def test_a_state_that_is_a_part_of_a_large_tensor_does_not_keep_it() -> None:
    ended = commands.succeed([sys.executable, "-c", PROGRAM])
    # Of each row the metric makes a matrix of all classes, 8 MB: 1.2 GB of all rows.
    assert int(ended.stdout) < 300_000, f"{ended.stdout} kB"
