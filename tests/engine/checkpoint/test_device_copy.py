"""A copy of tensors has the values that they had when it began, whatever happens to them then."""

from __future__ import annotations

import pytest
import torch

from train_core.engine.checkpoint.device_copy import DeviceCopy

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
        copy.start([(copied[0], changing)], [(copied[1], updated)])
        assert not torch.cuda.current_stream().query(), "start waits for nothing"
        changing.fill_(9)
        torch.cuda._sleep(10**8)
        copy.before_update()
        updated.fill_(9)
        copy.wait()
        assert not torch.cuda.current_stream().query(), "the copy does not wait for the next step"
        assert copied[0].eq(1).all()
        assert copied[1].eq(2).all()
        torch.cuda.synchronize()
