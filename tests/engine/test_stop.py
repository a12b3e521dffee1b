"""A training that is asked to stop: all ranks save after one step, and it goes on from there."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from tests.engine import rank
from tests.engine.alone import create, run
from tests.engine.processes import train
from tests.engine.rank import MortalTrainer
from tests.engine.test_exact import CONFIG
from train_core.config import TrainConfig
from train_core.engine.control import ControlWord
from train_core.engine.group import Group
from train_core.engine.loop import Trainer
from train_core.storage.run_folder import RunFolder
from train_core.storage.stop import ask_to_stop, asked_to_stop

ASKED_AFTER = 2


class AskingTrainer(MortalTrainer):
    """Its rank 0 asks, as somebody outside would, and waits until it has heard itself."""

    def step(self) -> None:
        if self.progress.step == ASKED_AFTER and self.attempt == 1 and self.group.is_first:
            ask_to_stop(self.folder.store, self.attempt, "the test wants it")
            while not self.listener.is_asked:
                time.sleep(0.01)
        super().step()


def main(*arguments: Any) -> None:
    rank.MortalTrainer = AskingTrainer  # type: ignore[misc]  # in this process, which is a rank
    rank.main(*arguments)


@pytest.mark.parametrize(("workers", "after"), [(1, 2), (2, 1), (3, 4)])
def test_all_ranks_stop_after_the_same_step_and_go_on_from_there(
    workers: int, after: int, tmp_path: Path
) -> None:
    config = CONFIG | {"num_shards": 4, "keep_last": 99}
    storage = str(tmp_path)
    undisturbed = train(storage, "undisturbed", attempt=1, workers=1, config=config)

    train(storage, "run", attempt=1, workers=workers, config=config, main=main)

    last = RunFolder(storage, "run").checkpoints()[-1]
    # The wish travels in the word of step 3, which is read in step 4.
    assert (last.manifest.step, last.manifest.stopped_by) == (ASKED_AFTER + 2, "request")
    assert not last.manifest.is_last
    again = train(storage, "run", attempt=2, workers=after, config=config)
    assert again == {"digest": undisturbed["digest"], "resumed_from": ASKED_AFTER + 2}


def test_a_request_is_for_one_attempt(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    ask_to_stop(folder.store, 7, "Ctrl-C")
    assert asked_to_stop(folder.store, 7) == "Ctrl-C"
    assert asked_to_stop(folder.store, 8) == ""


def test_whoever_reads_nonsense_trains_on(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    folder.store.write("lease/0001-stop.json", b"{}")
    progress = run(folder, epochs=1)
    assert progress.stopped_by == "epochs"


def test_the_end_has_its_own_reason_also_if_somebody_asked(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    config = TrainConfig(workload="tests.engine.tiny:Tiny", batch_size=32, max_steps=1)
    create(folder, config)
    trainer = Trainer(folder, config, 1, Group.current())
    trainer.listener.is_asked = True
    assert trainer.run().stopped_by == "max_steps"


def test_the_word_tells_wishes_apart() -> None:
    assert not dist.is_initialized()
    word = ControlWord(1, Group.current())
    word.send(wants_checkpoint=False, wants_stop=False, is_asked_to_stop=True, is_busy=False)
    told = word.read()
    found = (told.wants_checkpoint, told.wants_stop, told.is_asked_to_stop, told.is_busy)
    assert found == (False, False, True, False)
