"""What each worker runs in a training: it joins the group and trains as one of its ranks."""

from __future__ import annotations

import gc
import logging
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

import torch

from train_core.config import TrainConfig
from train_core.errors import AttemptLostError, EvertrainError, UserCodeError, words_of
from train_core.inside import was_terminated
from train_core.quick_imports import import_for_optimizers
from train_core.rank.distributed.earlier_commit import wait_for_earlier
from train_core.rank.distributed.group import (
    Group,
    follows_from_another_end,
    is_of_another_rank,
    use_deterministic_algorithms,
)
from train_core.rank.distributed.rendezvous import Membership, process_group
from train_core.rank.distributed.stop_requests import PostedByDriver
from train_core.rank.loop import Trainer
from train_core.rank.memory import Memory, Modes
from train_core.storage.run_folder import RunFolder
from train_core.text.log_lines import set_up_logging
from train_core.transient_errors import passes_by_itself

_MEMORY = Memory()
"""What this process remembers."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RankEnd:
    """How a rank came to its end."""

    has_saved: bool
    """Whether the last step is committed; if not, a request ended it while the storage was away."""
    saved_step: int
    """The step of the newest commit, as far as this rank knows: rank 0 does."""
    is_leaving: bool = False
    """Whether its process got SIGTERM."""


def train(
    url: str,
    config: TrainConfig,
    attempt: int,
    own: Membership,
    trainer: Callable[..., Trainer] = Trainer,
) -> RankEnd:
    """Train the run at `url` to its end, as one rank of an attempt.

    A process that has lost another rank ends all of the attempt, and keeps its state for the next.
    Raises UserCodeError with the traceback for what the workload's code raises, AttemptLostError
    for what follows from the end of another rank, and ConnectionError for what may pass by itself.
    """
    set_up_logging(sys.stderr)
    _freeze_what_was_imported()
    if _MEMORY.modes is not None:
        _MEMORY.modes.set()
    try:
        return _train(url, config, attempt, own, trainer)
    except EvertrainError:
        raise
    # A SystemExit is a workload's own sys.exit(), which would end the worker, and never Ray's: its
    # handler of SIGTERM raises one in the process's main thread, and a rank runs in another.
    except (Exception, SystemExit) as error:
        where = f"rank {own.rank}"
        if not (follows_from_another_end(error) or passes_by_itself(error)):
            raise UserCodeError.raised_by("train", where, error, traceback.format_exc()) from error
        told = _told(f"{where}: {words_of(error)}", error)
        _log.debug("the attempt broke", exc_info=True)
        _clear_frames(error)
    # Here, where no error keeps the frames, and they the sockets of the group.
    gc.collect()
    raise told


def prepare(url: str, config: TrainConfig) -> None:
    """Load the run's data, for this process to become one of its ranks at once."""
    set_up_logging(sys.stderr)
    folder = RunFolder.at(url)
    # What a dataset computes has the bits that it has in a rank.
    torch.set_num_threads(config.threads_per_worker)
    use_deterministic_algorithms(config, torch.device("cpu"), folder.record().step_rules)
    _MEMORY.turn_to(url)
    _MEMORY.prepare(folder, config).check()
    import_for_optimizers()
    _freeze_what_was_imported()


def _train(
    url: str, config: TrainConfig, attempt: int, own: Membership, made_by: Callable[..., Trainer]
) -> RankEnd:
    _MEMORY.turn_to(url)
    if config.compile:
        # After a few compilations of one function in one process, torch runs it as it is.
        torch.compiler.reset()
    with process_group(own, uses_gpu=config.uses_gpu):
        group = Group.current(uses_gpu=config.uses_gpu)
        folder = RunFolder.at(url)
        memory = _MEMORY if config.goes_on_in_place else None
        trainer: Trainer | None = None

        def can_hand_over() -> bool:
            return memory is not None and trainer is not None and trainer.can_hand_over

        source = PostedByDriver(own, can_hand_over)
        trainer = made_by(
            folder,
            config,
            attempt,
            group,
            stop_source=source,
            memory=memory,
            earlier=partial(wait_for_earlier, own),
            taken=lambda: source.taken,
        )
        # The workload's module is imported once in a process, and may have set them.
        _MEMORY.modes = _MEMORY.modes or Modes.current()
        try:
            trainer.run()
        except BaseException as error:
            if memory is not None:
                trainer.keep()
                if trainer.checkpointer.is_busy:
                    raise ConnectionError("a checkpoint of before is still being stored") from error
            raise
        # The process may evaluate next.
        _MEMORY.turn_to("")
        newest = trainer.checkpointer.newest
        return RankEnd(trainer.has_saved, newest.step if newest else 0, was_terminated())


def _told(words: str, error: BaseException) -> Exception:
    """What the driver is told of an error that is no bug."""
    if is_of_another_rank(error):
        kept = _MEMORY.kept
        return AttemptLostError(words, kept.step if kept else 0)
    return ConnectionError(words)


def _clear_frames(error: BaseException | None) -> None:
    """Let go of what the frames that the error passed through refer to."""
    while error is not None:
        traceback.clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


@cache
def _freeze_what_was_imported() -> None:
    """Going through it for garbage would stop the loop for 0.2 s at times."""
    gc.collect()
    gc.freeze()
