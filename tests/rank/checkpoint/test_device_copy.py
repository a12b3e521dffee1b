"""A copy of tensors has the values that they had when it began, whatever happens to them then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.rank.alone import create
from train_core.config import TrainConfig
from train_core.rank.checkpoint.device_copy import DeviceCopy
from train_core.rank.data.recorded_workload import with_monitor
from train_core.rank.distributed.group import Group
from train_core.rank.loop import Trainer
from train_core.storage.run_folder import RunFolder

SIZE = 2**24


def test_on_a_cpu_it_is_done_when_it_was_started() -> None:
    copy = DeviceCopy(torch.device("cpu"))
    changing, updated = torch.ones(3), torch.full((2,), 2.0)
    copied = torch.zeros(3), torch.zeros(2)
    copy.start([(copied[0], changing)], [(copied[1], updated)])
    changing.zero_()
    updated.zero_()
    copy.before_update()
    copy.wait()
    assert [tensor.tolist() for tensor in copied] == [[1, 1, 1], [2, 2]]
    copy.start([], [])
    copy.wait()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_from_a_gpu_it_goes_on_while_the_next_step_computes() -> None:
    device = torch.device("cuda")
    copy = DeviceCopy(device)
    changing, updated = torch.ones(SIZE, device=device), torch.full((SIZE,), 2.0, device=device)
    copied = [torch.zeros(SIZE, pin_memory=True) for _ in range(2)]
    for _ in range(3):
        # The values that count are computed when the GPU has woken up.
        torch.cuda._sleep(10**8)
        changing.fill_(1)
        updated.fill_(2)
        assert copy._stream is not None
        with torch.cuda.stream(copy._stream):
            # The copy comes late, and an update that did not wait for it would be there before.
            torch.cuda._sleep(2 * 10**8)
        copy.start([(copied[0], changing)], [(copied[1], updated)])
        assert not torch.cuda.current_stream().query(), "start waits for nothing"
        changing.fill_(9)
        copy.before_update()
        updated.fill_(9)
        torch.cuda._sleep(10**8)
        copy.wait()
        assert not torch.cuda.current_stream().query(), "the copy does not wait for the next step"
        assert copied[0].eq(1).all()
        assert copied[1].eq(2).all()
        torch.cuda.synchronize()


class NotedCopy(DeviceCopy):
    """Notes when an update is held back."""

    def __init__(self, noted: list[str]) -> None:
        super().__init__(torch.device("cpu"))
        self.noted = noted

    def before_update(self) -> None:
        self.noted.append("before the update")
        super().before_update()


def test_each_update_of_the_weights_is_held_back_until_they_are_copied(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    config = TrainConfig(workload="tests.rank.tiny:Tiny", batch_size=32)
    create(folder, config)
    trainer = Trainer(folder, with_monitor(config), 1, Group.current())
    noted: list[str] = []
    trainer.checkpointer._thread.snapshot.copy = NotedCopy(noted)

    def note_update(*_: Any) -> None:
        noted.append("update")

    trainer.learner.optimizer.register_step_pre_hook(note_update)
    try:
        trainer.restore()
        trainer.step()
        trainer.step()
    finally:
        trainer.close()
    assert noted == ["before the update", "update"] * 2
