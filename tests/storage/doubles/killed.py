"""Deletes by processes that are killed before their k-th change of the disk, for every k.

`python -m tests.storage.doubles.killed ACTION TEMPLATE ABOVE` copies the run folder TEMPLATE to
ABOVE/k/run, lets a process of its own do ACTION there, and kills it. The last one got through.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from itertools import count

from train_core.policy.checkpoints.retention import RetentionRules
from train_core.storage.cleanup.delete_checkpoint import delete_unless_pinned
from train_core.storage.cleanup.orphans import delete_orphans_of_the_dead
from train_core.storage.cleanup.prune import Pruning
from train_core.storage.coordination import lease
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt

RULES = RetentionRules(monitor="validation/accuracy", monitor_order="max", keep_last=1, keep_best=1)
DELETED = "step-00000002-a0001"
_CHANGES = {"os.remove", "os.rmdir", "os.mkdir", "os.rename", "os.link"}


def delete(folder: RunFolder) -> None:
    """One checkpoint, by the attempt that has the run."""
    assert delete_unless_pinned(RunWriter(folder, lease.newest_attempt(folder.store)), DELETED)


def prune(folder: RunFolder) -> None:
    """As `evertrain prune` does."""
    held = begin_attempt(folder)
    with lease.alive_until_released(held):
        Pruning(folder, RULES, datetime(2026, 1, 2, tzinfo=UTC), tuple).carry_out(held.attempt)


def begin(folder: RunFolder) -> None:
    """As the driver begins an attempt."""
    held = begin_attempt(folder)
    delete_orphans_of_the_dead(RunWriter(folder, held.attempt))
    held.release()


ACTIONS: dict[str, Callable[[RunFolder], None]] = {
    "delete": delete,
    "prune": prune,
    "begin": begin,
}


def die_before(change: int) -> None:
    """Kill this process as if the power failed, before its change of that number."""
    done = 0

    def look(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal done
        if event == "open":
            flags = arguments[2]
            assert isinstance(flags, int)
            is_change = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
        else:
            is_change = event in _CHANGES
        done += is_change
        if is_change and done == change:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(look)


def forked(act: Callable[[], object]) -> int:
    """How a process of its own has ended that does this, as `os.waitpid` tells it."""
    child = os.fork()
    if child == 0:
        try:
            act()
        except BaseException:  # noqa: BLE001 (told by the exit code)
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return os.waitpid(child, 0)[1]


def kill_before_each_change(
    act: Callable[[int], object],
    prepare: Callable[[int], object] = lambda _: None,
    die: Callable[[int], object] = die_before,
) -> None:
    """Let a process of its own `act(k)`, and kill it before its change k, for every k.

    `prepare(k)` comes before, unharmed; `die(k)` has the process killed, if `act` does not see to
    it. This process ends as the one that got through did.
    """
    for change in count(1):
        prepare(change)
        status = forked(lambda change=change: (die(change), act(change)))
        if not os.WIFSIGNALED(status):
            sys.exit(os.WEXITSTATUS(status))


def main(action: str, template: str, above: str) -> None:
    def act(change: int) -> None:
        ACTIONS[action](RunFolder.at(f"{above}/{change}/run"))

    kill_before_each_change(
        act, prepare=lambda change: shutil.copytree(template, f"{above}/{change}/run")
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
