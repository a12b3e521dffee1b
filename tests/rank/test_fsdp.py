"""Strategy `fsdp`: the same training as `ddp`, with every tensor in slices on real gloo ranks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.marks import SLOW, slow
from tests.rank.test_exact import CONFIG
from tests.rank.tiny import TinySettings
from tests.ranks import fsdp_rank
from tests.ranks.fsdp_rank import Smooth
from tests.ranks.processes import train
from train_core.config import TrainConfig


def run(folder: Path, workers: int, strategy: str = "fsdp", **change: Any) -> list[dict[str, Any]]:
    """What each rank says at the end."""
    config = CONFIG | {"workload": "tests.ranks.fsdp_rank:Smooth", "strategy": strategy} | change
    found: list[dict[str, Any]] = train(
        str(folder / strategy),
        f"on-{workers}",
        attempt=1,
        workers=workers,
        config=config,
        main=fsdp_rank.main,
    )
    return found


def assert_equal_to_rounding(
    found: dict[str, Any], expected: dict[str, Any], **tolerance: float
) -> None:
    for part in ("tensors", "metrics"):
        assert found[part].keys() == expected[part].keys()
        for name, value in expected[part].items():
            torch.testing.assert_close(
                torch.tensor(found[part][name]),
                torch.tensor(value),
                msg=lambda message, name=name: f"{name}: {message}",
                **tolerance,
            )


@pytest.fixture(scope="module")
def ddp(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What ddp, which is the same on any number of workers, ends with."""
    (found,) = run(tmp_path_factory.mktemp("reference"), 1, "ddp")
    return found


@pytest.mark.promise("fsdp")
@pytest.mark.parametrize("workers", [slow(1), 2, slow(3)])
def test_it_trains_as_ddp_does(ddp: dict[str, Any], workers: int, tmp_path: Path) -> None:
    for rank in run(tmp_path, workers):
        assert_equal_to_rounding(rank, ddp)


CHANGES: dict[str, dict[str, Any]] = {
    "momentum": {"settings": {"momentum": 0.9}},
    "initialize": {"workload": "tests.ranks.fsdp_rank:Published"},
    "average": {"workload": "tests.ranks.fsdp_rank:Averaging"},
    "no-blocks": {"workload": "tests.ranks.fsdp_rank:Whole"},
    # The last step's two samples are two micro-batches of shard 0: the others only pad.
    "padding": {"workload": "tests.rank.tiny:Linear", "settings": {"num_train": 130}},
    "data-workers": {"settings": {"sample_by_sample": True}, "data_workers": 2},
    "stream": {
        "workload": "tests.ranks.fsdp_rank:StreamingSmooth",
        "num_shards": 3,
    },
}


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change, id=name, marks=() if name in ("no-blocks", "stream") else SLOW)
        for name, change in CHANGES.items()
    ],
)
@pytest.mark.slow
def test_each_feature_trains_as_with_ddp(change: dict[str, Any], tmp_path: Path) -> None:
    (expected,) = run(tmp_path, 1, "ddp", **change)
    for rank in run(tmp_path, 3, **change):
        assert_equal_to_rounding(rank, expected)


@pytest.mark.slow
def test_bf16_trains_as_with_ddp(tmp_path: Path) -> None:
    change = {"precision": "bf16", "settings": {"momentum": 0.9}}
    (expected,) = run(tmp_path, 1, "ddp", **change)
    for rank in run(tmp_path, 2, **change):
        # A weight's last bit may round an activation to the next of bf16's 8-bit mantissas.
        assert_equal_to_rounding(rank, expected, rtol=2**-7, atol=2**-7)


@pytest.mark.slow
def test_the_same_number_of_workers_ends_with_the_same_bits(tmp_path: Path) -> None:
    assert run(tmp_path / "once", 3) == run(tmp_path / "again", 3)


@pytest.mark.promise("fsdp")
def test_every_rank_keeps_a_slice_only(ddp: dict[str, Any], tmp_path: Path) -> None:
    # Linear(8, 16), BatchNorm and Linear(16, 3): weights, their average and two moments of AdamW;
    # beside them BatchNorm's buffers and the counted steps of AdamW's 5 tensors, on every rank.
    weights, others = 8 * 16 + 2 * 16 + (16 * 3 + 3), (2 * 16 + 1) + 5
    assert ddp["numbers_here"] == 4 * weights + others
    halves = [rank["numbers_here"] - others for rank in run(tmp_path, 2)]
    # Rank 0 has two of three rows of the last layer.
    assert halves == [4 * (weights + 17) // 2, 4 * (weights - 17) // 2]


@pytest.mark.parametrize("workers", [slow(1), 2])
@pytest.mark.parametrize("workload", ["Smooth", "Averaging"])
@pytest.mark.slow
def test_the_state_is_called_by_the_names_of_torch_distributed_checkpoint(
    workload: str, workers: int, tmp_path: Path
) -> None:
    for rank in run(tmp_path, workers, workload=f"tests.ranks.fsdp_rank:{workload}"):
        assert rank["names"] == rank["canonical_names"]
        assert len(rank["names"]["state"]) > 0


@pytest.mark.slow
def test_validation_forwards_are_no_collectives(tmp_path: Path) -> None:
    # 70 samples in batches of 16 on 4 shards: 3, 1 and 1 batches on the three ranks.
    for rank in run(tmp_path, 3, workload="tests.ranks.fsdp_rank:Counting"):
        assert rank["num_collectives"]["true"] > 0
        assert rank["num_collectives"]["false"] == 0
        assert rank["metrics"]["validation/count"] == 70


def test_not_a_number_ends_every_rank_at_its_step(tmp_path: Path) -> None:
    found = run(tmp_path, 3, settings={"nan_from_step": 3})
    assert len(found) == 3
    assert all("NotFiniteError" in rank["error"] and "step 4" in rank["error"] for rank in found)


@pytest.mark.promise("fsdp-limits")
def test_what_fsdp_cannot_do_is_refused() -> None:
    for name in ("compile", "channels_last"):
        assert TrainConfig(strategy="ddp", **{name: True})
        with pytest.raises(ValueError, match=f"{name} cannot be combined with strategy fsdp"):
            TrainConfig(strategy="fsdp", **{name: True})


def test_default_blocks_are_the_children_of_the_outermost_containers() -> None:
    inner = [nn.Sequential(nn.Linear(2, 2), nn.ReLU()), nn.Linear(2, 2)]
    nested = nn.Linear(2, 2)
    model = nn.ModuleDict(
        {
            "stem": nn.Linear(2, 2),
            "layers": nn.Sequential(*inner),
            "heads": nn.ModuleList([nn.ModuleList([nested])]),
        }
    )
    assert list(Smooth(TinySettings()).blocks(model)) == [*inner, nested]


def test_a_stream_of_unequal_shards_is_refused(tmp_path: Path) -> None:
    change = {"workload": "tests.rank.tiny:StreamingTiny", "num_shards": 3}
    for rank in run(tmp_path, 2, **change):
        assert "2 workers would not compute equally many micro-batches of 3 shards" in rank["error"]


def test_a_parameter_of_two_blocks_is_refused(tmp_path: Path) -> None:
    for rank in run(tmp_path, 2, workload="tests.ranks.fsdp_rank:TiedTiny"):
        assert "a parameter of Tied is shared by two of its blocks" in rank["error"]
