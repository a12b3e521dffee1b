"""A rank that makes no more progress ends itself and the others, and says where it stood."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.marks import slow
from tests.rank.test_exact import CONFIG
from tests.ranks import rank
from tests.ranks.processes import files, ranks, train
from tests.ranks.rank import MortalTrainer
from train_core.policy.samples.steps import MicroBatch
from train_core.storage.objects.store import Store
from train_core.workload import Batch

TIMEOUT_S = 2.0
HANGS = CONFIG | {"hang_timeout_s": TIMEOUT_S}
STEP = 3


class HangingTrainer(MortalTrainer):
    """Rank 1 of the first attempt hangs in a forward pass, or in validation."""

    where = "step"

    def _forward(self, micro: MicroBatch, batch: Batch) -> Any:
        if self.where == "step" and self.progress.step == STEP:
            self.hang_for_good()
        return super()._forward(micro, batch)

    def meet(self, point: str) -> None:
        if point == self.where:
            self.hang_for_good()
        super().meet(point)

    def hang_for_good(self) -> None:
        if self.group.rank == 1 and self.attempt == 1:
            threading.Event().wait()


class HangingInValidation(HangingTrainer):
    where = "in_validation"


class SlowInValidation(MortalTrainer):
    """Rank 0 measures for longer than the others may wait; each batch of it does not."""

    def meet(self, point: str) -> None:
        if point == "in_validation" and self.group.rank == 0:
            time.sleep(TIMEOUT_S / 4)
        super().meet(point)


class SlowStorage(Store):
    """What others wait for longer than they may without progress."""

    def put(self, key: str, data: memoryview) -> str:
        if key.endswith("model.safetensors"):
            time.sleep(TIMEOUT_S * 1.5)
        return super().put(key, data)


def hanging_in_step(*arguments: Any) -> None:
    rank.MortalTrainer = HangingTrainer  # type: ignore[misc]  # in this process, which is a rank
    rank.main(*arguments)


def hanging_in_validation(*arguments: Any) -> None:
    rank.MortalTrainer = HangingInValidation  # type: ignore[misc]  # as above
    rank.main(*arguments)


def slow_in_validation(*arguments: Any) -> None:
    rank.MortalTrainer = SlowInValidation  # type: ignore[misc]  # as above
    rank.main(*arguments)


def slow_storage(*arguments: Any) -> None:
    rank.MortalStore.__bases__ = (SlowStorage,)
    rank.main(*arguments)


def task_in(tmp_path: Path, config: dict[str, Any]) -> dict[str, Any]:
    storage = str(tmp_path)
    return {"storage": storage, "home": storage, "run": "run", "attempt": 1, "config": config}


@pytest.mark.promise("worker-hangs")
@pytest.mark.parametrize("main", [hanging_in_step, hanging_in_validation])
def test_a_rank_that_hangs_is_ended_and_its_stack_is_told(main: Any, tmp_path: Path) -> None:
    undisturbed = train(str(tmp_path), "undisturbed", attempt=1, workers=1, config=CONFIG)
    # Both write to one log: only one of them may have something to say at that time.
    task = task_in(tmp_path, HANGS | {"hang_timeout_s": 60})
    with ranks(task, 2, {"rank": 1, "config": HANGS}, main=main) as both:
        for process in both:
            process.join(60)
        log = files(task)[0].read_text()
        assert both[1].exitcode == 1, log
        # It heard that its connection broke.
        assert both[0].exitcode not in (0, None), log
    assert "Timeout (0:00:02" in log
    assert "in hang_for_good" in log
    again = train(str(tmp_path), "run", attempt=2, workers=2, config=HANGS)
    assert again["digest"] == undisturbed["digest"]


@pytest.mark.promise("worker-frozen")
def test_a_rank_that_is_stopped_from_outside_is_noticed_by_the_others(tmp_path: Path) -> None:
    task = task_in(tmp_path, HANGS)
    with ranks(task, 2, {"point": "stop_before_step", "step": STEP, "rank": 1}) as both:
        both[0].join(60)
        log = files(task)[0].read_text()
        assert both[0].exitcode == 1, log
        assert psutil.Process(both[1].pid).status() == psutil.STATUS_STOPPED
    assert "Timeout (0:00:02" in log


@pytest.mark.promise("worker-frozen")
@pytest.mark.parametrize("main", [slow_in_validation, slow(slow_storage)])
def test_what_is_only_slow_is_no_hang(main: Any, tmp_path: Path) -> None:
    config = HANGS | {"eval_batch_size": 4, "checkpoint_backpressure": "wait", "max_steps": 6}
    ended = train(str(tmp_path), "run", attempt=1, workers=2, config=config, main=main)
    assert ended["resumed_from"] == 0


RESTING = """
import time
from train_core.rank.distributed.watchdog import Watchdog

watchdog = Watchdog(2)
watchdog.move()
watchdog.rest()
time.sleep(3)
with watchdog.resting():
    time.sleep(3)
watchdog.rest()
"""


@pytest.mark.slow
def test_nothing_fires_once_it_rests() -> None:
    subprocess.run([sys.executable, "-c", RESTING], check=True, timeout=60)
