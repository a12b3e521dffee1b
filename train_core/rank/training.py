"""What each worker runs in a training: it joins the group and trains as one of its ranks."""

from __future__ import annotations

import gc
import sys
import traceback
from dataclasses import dataclass

from torch.distributed import DistError

from train_core.config import TrainConfig
from train_core.errors import EvertrainError, UserCodeError, words_of
from train_core.rank.distributed.group import Group
from train_core.rank.distributed.rendezvous import Membership, process_group
from train_core.rank.distributed.stop_requests import PostedByDriver
from train_core.rank.loop import Trainer
from train_core.storage.run_folder import RunFolder
from train_core.text.log_lines import set_up_logging
from train_core.transient_errors import passes_by_itself


@dataclass(frozen=True)
class RankEnd:
    """How a rank came to its end."""

    has_saved: bool
    """Whether the last step is committed; if not, a request ended it while the storage was away."""
    saved_step: int
    """The step of the newest commit, as far as this rank knows: rank 0 does."""


def train(url: str, config: TrainConfig, attempt: int, own: Membership) -> RankEnd:
    """Train the run at `url` to its end, as one rank of an attempt.

    Raises UserCodeError with the traceback for what the workload's code raises, and
    ConnectionError for what follows from the end of another rank, or passes by itself.
    """
    set_up_logging(sys.stderr)
    # What was imported stays: going through it for garbage would stop the loop for 0.2 s at times.
    gc.collect()
    gc.freeze()
    try:
        with process_group(own, uses_gpu=config.uses_gpu):
            group = Group.current(uses_gpu=config.uses_gpu)
            folder, source = RunFolder.at(url), PostedByDriver(own)
            trainer = Trainer(folder, config, attempt, group, stop_source=source)
            trainer.run()
            newest = trainer.checkpointer.newest
            return RankEnd(trainer.has_saved, newest.step if newest else 0)
    except EvertrainError:
        raise
    # A SystemExit is a workload's own sys.exit(), which would end the worker, and never Ray's: its
    # handler of SIGTERM raises one in the process's main thread, and a rank runs in another.
    except (Exception, SystemExit) as error:
        where = f"rank {own.rank}"
        if follows_from_another_end(error) or passes_by_itself(error):
            raise ConnectionError(f"{where}: {words_of(error)}") from error
        raise UserCodeError.raised_by("train", where, error, traceback.format_exc()) from error


def follows_from_another_end(error: BaseException) -> bool:
    """Whether another process's end is what broke this rank, and no bug of the user's."""
    if isinstance(error, (ConnectionError, DistError)):
        return True
    # Neither gloo nor the DataLoader has a type of its own; gloo names the place in its source.
    markers = ("/gloo/", "DataLoader worker (pid")
    return type(error) is RuntimeError and any(words in str(error) for words in markers)
