"""A run that an earlier version began goes on by the rules that it began with, to the same bits."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.pytorch.engine import config_of, differences, engine, oracle
from tests.rank import alone
from train_core.rank.data.recorded_workload import with_monitor
from train_core.rank.distributed.group import Group, set_deterministic
from train_core.rank.loop import Trainer
from train_core.storage.records.run_record import RunRecord
from train_core.storage.run_folder import RunFolder


@pytest.fixture(autouse=True)
def settings_of_torch() -> Iterator[None]:
    """A training leaves torch's threads and algorithms as it needs them."""
    threads = torch.get_num_threads()
    yield
    torch.use_deterministic_algorithms(mode=False)
    torch.set_num_threads(threads)


@pytest.mark.parametrize(
    "name", ["a head that forward leaves out", "a part in evaluation", "plain"]
)
@pytest.mark.parametrize("num_shards", [1, 2])
def test_a_run_goes_on_by_the_rules_that_it_began_with(
    name: str, num_shards: int, tmp_path: Path
) -> None:
    row, folder = f"Situations: {name}", RunFolder(str(tmp_path), "run")
    alone.create(folder, config_of(row, num_shards), step_rules=1)
    found = engine(row, num_shards, folder, 3)
    assert not differences(found, oracle(row, num_shards, step_rules=1))
    is_alike = not differences(found, oracle(row, num_shards))
    assert is_alike == (name == "plain" or (name.startswith("a head") and num_shards == 1))


def test_a_record_without_rules_has_the_first_ones(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    alone.create(folder, config_of("Situations: plain", 2))
    written = folder.record().model_dump(mode="json")
    assert written.pop("step_rules") == 2
    assert RunRecord.model_validate(written).step_rules == 1


@pytest.mark.parametrize(
    ("threads", "step_rules", "deterministic"), [(1, 2, False), (2, 2, True), (2, 1, False)]
)
def test_several_threads_compute_by_deterministic_algorithms(
    threads: int, step_rules: int, deterministic: bool, tmp_path: Path
) -> None:
    folder = RunFolder(str(tmp_path), "run")
    config = config_of("Situations: plain", 1)
    config = config.model_copy(update={"threads_per_worker": threads})
    alone.create(folder, config, step_rules=step_rules)
    Trainer(folder, with_monitor(config), 1, Group.current()).close()
    assert torch.are_deterministic_algorithms_enabled() == deterministic


def test_torch_loads_no_compiler_to_be_told_what_it_does_already(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # An import of it is refused.
    monkeypatch.setitem(sys.modules, "torch._inductor.config", None)
    set_deterministic(mode=False)
    with pytest.raises(ImportError):
        set_deterministic(mode=True)


def test_gradients_of_indexing_are_the_same_each_time_with_several_threads(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    config = config_of("Situations: plain", 1).model_copy(update={"threads_per_worker": 2})
    alone.create(folder, config)
    Trainer(folder, with_monitor(config), 1, Group.current()).close()
    torch.manual_seed(0)
    index, weights = torch.randint(50, (200_000,)), torch.randn(200_000, 4)
    found = set()
    for _ in range(10):
        x = torch.ones(50, 4, requires_grad=True)
        (x[index] * weights).sum().backward()
        assert x.grad is not None
        found.add(x.grad.numpy().tobytes())
    assert len(found) == 1
