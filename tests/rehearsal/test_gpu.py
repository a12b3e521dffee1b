"""A rehearsal on a GPU says of a workload what it says on a CPU."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch

from tests.rehearsal import odd
from train_core.config import TrainConfig
from train_core.rehearsal.rehearse import rehearse
from train_core.workload import Workload, indexed, load_split

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")


def said(kind: type[Workload[Any]], device: str) -> tuple[list[str], list[tuple[str, bool]]]:
    config = TrainConfig(workload="tests.rehearsal.odd:Right", batch_size=32, num_shards=2)
    workload = kind(odd.Settings())
    new = partial(kind, odd.Settings())
    splits = load_split(workload, "train"), indexed(workload, "validation")
    found = rehearse(new, new, config, *splits, torch.device(device))
    return list(found.tried), [(one.name, one.is_refused) for one in found.findings]


@pytest.mark.parametrize(
    "kind",
    [odd.Right, odd.WronglyMerged, odd.InBatch, odd.NotFinite, odd.LostState, odd.NoRowAlone],
)
def test_it_is_tried_and_found_as_on_a_cpu(kind: type[Workload[Any]]) -> None:
    assert said(kind, "cuda") == said(kind, "cpu")
