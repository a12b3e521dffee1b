"""A training that is followed is one report ahead of who follows it."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.rank import alone
from train_core import TrainConfig
from train_core.rank.data.recorded_workload import with_monitor
from train_core.rank.distributed.group import Group
from train_core.rank.loop import Trainer
from train_core.storage.run_folder import RunFolder

STEPS = 5
"""Of an epoch."""


@pytest.mark.promise("tune-trials")
def test_a_training_waits_at_a_validation_for_the_one_before(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    config = with_monitor(
        TrainConfig(workload="tests.rank.tiny:Tiny", batch_size=32, eval_batch_size=16, epochs=8)
    )
    alone.create(folder, config)
    taken, calls, waits = [0], [0], threading.Event()

    def ask() -> int:
        calls[0] += 1
        if calls[0] > 20:
            waits.set()
        return taken[0]

    trainer = Trainer(folder, config, 1, Group.current(uses_gpu=False), taken=ask)
    thread = threading.Thread(target=trainer.run)
    thread.start()
    while thread.is_alive():
        if not waits.wait(0.05):
            continue
        step = trainer.progress.step
        assert step % STEPS == 0
        newest = folder.newest()
        assert newest is not None
        # It has trained on while the commit was under way, and waits since that is there.
        assert taken[0] < newest.step <= step
        calls[0], taken[0] = 0, newest.step
        waits.clear()
    thread.join()
    assert trainer.progress.step == 8 * STEPS
    assert taken[0] > 0
