"""What a training records of its steps."""

from __future__ import annotations

import pytest

from train_core.rank.step_metrics import Throughput


def test_the_throughput_is_that_of_the_last_seconds() -> None:
    throughput = Throughput(window_s=2)
    throughput.restart(100.0)
    # Steps of 10 samples that take a quarter or three quarters of a second in turn.
    ends = [100.25 + step // 2 + 0.75 * (step % 2) for step in range(20)]
    rates = [throughput.add(end, 10) for end in ends]
    assert rates[0] == 40
    # One step's rate would be 40 or 13.3.
    assert all(rate == pytest.approx(20, rel=0.15) for rate in rates[4:])
    # A stall is seen for as long as the window, and then is no more.
    after = [throughput.add(ends[-1] + 4 + 0.5 * step, 10) for step in range(1, 8)]
    assert after[0] < 10
    assert after[-1] == 20


def test_a_step_that_is_longer_than_the_window_is_measured_alone() -> None:
    throughput = Throughput(window_s=2)
    throughput.restart(0.0)
    assert [throughput.add(10.0, 100), throughput.add(15.0, 100)] == [10, 20]


def test_a_validation_is_no_part_of_it() -> None:
    throughput = Throughput(window_s=2)
    throughput.restart(0.0)
    assert throughput.add(1.0, 10) == 10
    throughput.restart(61.0)
    assert throughput.add(62.0, 10) == 10
