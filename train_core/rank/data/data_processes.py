"""Processes that fetch a rank's batches ahead of the loop, and what is told of one that gives none.

A process hangs if none of its threads has run for `HANGS_AFTER_S` while a batch is waited for: it
waits for a lock that nobody frees, or for an answer that does not come.
"""

from __future__ import annotations

import ctypes
import faulthandler
import logging
import multiprocessing
import os
import re
import signal
import sys
import time
import traceback as tracebacks
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
import torch
from torch.utils.data import DataLoader, get_worker_info
from torch.utils.data import Dataset as TorchDataset
from torch.utils.data._utils import signal_handling
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from train_core.errors import (
    DataError,
    EvertrainError,
    UserCodeError,
    line_of_users_code,
    words_of,
)
from train_core.transient_errors import passes_by_itself

T = TypeVar("T")

TELL_AFTER_S = 30.0
"""How long a batch is waited for until the log says so; then after twice as long, and so on."""
LOCKED_AFTER_S = 30.0
"""How long all threads of a process may wait for locks while no other process runs, either."""
HANGS_AFTER_S = 120.0
"""Longer than clients of storages and databases wait for an answer before they ask again."""
POLL_S = 5.0
"""How often a process that is waited for is looked at."""
_STACK_S = 1.0
"""How long a process has to write its stack: the system's signal handler does it."""
_SHARED_MEMORY = "/dev/shm"  # noqa: S108 (where the system has it)
_STACK = "evertrain-stack"
"""The name of the file in memory that a process writes its stack to."""
_CALL = re.compile(r'File "(.+)", line (\d+) in (.+)')
_log = logging.getLogger("train_core.data")

_PR_SET_PDEATHSIG = 1
"""An option of Linux's prctl: the signal that a process gets when its parent ends."""


class _Described(TorchDataset[T | EvertrainError]):
    """Items, or the error in the place of one: torch keeps no attribute of an error that it moves.

    It makes a new one of the same class, with a traceback of many lines as its message.
    """

    def __init__(self, batches: TorchDataset[T]) -> None:
        self._batches = batches

    def __getitem__(self, key: Any) -> T | EvertrainError:
        try:
            return self._batches[key]
        except EvertrainError as error:
            return error
        except Exception as error:
            if passes_by_itself(error):
                # Another attempt may read it: torch hands on this class, if not any client's.
                raise ConnectionError(words_of(error)) from error
            where, trace = f"data worker {os.getpid()}", tracebacks.format_exc()
            return UserCodeError.raised_by("train", where, error, trace)


def load_ahead(
    batches: TorchDataset[T], keys: Iterable[Any], *, num_processes: int, device: torch.device
) -> Iterator[T | EvertrainError]:
    """The items of `keys` in order, fetched by `num_processes` processes or in the loop.

    An item that a process could not fetch is the error, for the caller to raise.
    """
    loader: DataLoader[T | EvertrainError] = _Loader(
        _Described(batches) if num_processes else batches,
        batch_size=None,
        sampler=keys,
        num_workers=num_processes,
        pin_memory=device.type == "cuda",
        collate_fn=_in_shared_memory,
        worker_init_fn=_set_up_process,
    )
    return iter(loader)


def end_processes(batches: Iterator[Any], *, at_once: bool = False) -> None:
    """End the processes that `load_ahead` started, also while a traceback still refers to them.

    `at_once`: what they still fetch is not waited for.
    """
    if isinstance(batches, _MultiProcessingDataLoaderIter):
        # They hold the sockets of the process group.
        if at_once and batches._worker_pids_set:  # noqa: SLF001 (torch has no public way)
            # Else torch takes it for their failure, in a handler of SIGCHLD.
            signal_handling._remove_worker_pids(id(batches))  # type: ignore[attr-defined] # noqa: SLF001
            batches._worker_pids_set = False  # noqa: SLF001
        for process in batches._workers if at_once else ():  # noqa: SLF001
            process.kill()
        batches._shutdown_workers()  # noqa: SLF001 (torch has no public way)


class _Loader(DataLoader[T]):
    """torch's, whose processes tell why they give nothing."""

    def _get_iterator(self) -> Any:
        return _LoaderIterator(self) if self.num_workers else super()._get_iterator()


class _LoaderIterator(_MultiProcessingDataLoaderIter):
    """Tells of a process that is waited for very long, and ends the wait for one that hangs."""

    _next_told_s = TELL_AFTER_S
    _waits_since = 0.0
    _last_ran = (-1, 0.0)
    """How long the process that is waited for had run at a look, and when that was new."""
    _all_last_ran = (-1, 0.0)
    """The same of all processes together, of which one may hold a lock of another one."""

    def __next__(self) -> Any:
        self._waits_since, self._next_told_s = time.monotonic(), TELL_AFTER_S
        self._last_ran = self._all_last_ran = (-1, 0.0)
        return super().__next__()

    def _try_get_data(self, timeout: float | None = None) -> tuple[bool, Any]:
        found: tuple[bool, Any] = super()._try_get_data(  # type: ignore[no-untyped-call]
            POLL_S if timeout is None else timeout
        )
        if not found[0]:
            number = self._task_info[self._rcvd_idx][0]
            self._look_at(number, self._workers[number].pid)
        return found

    def _look_at(self, number: int, pid: int) -> None:
        now, ran_ns = time.monotonic(), _ran_ns(pid)
        if ran_ns != self._last_ran[0]:
            self._last_ran = (ran_ns, now)
        all_ran_ns = sum(_ran_ns(one.pid or 0) for one in self._workers)
        if all_ran_ns != self._all_last_ran[0]:
            self._all_last_ran = (all_ran_ns, now)
        still_s = now - self._last_ran[1]
        is_locked = now - self._all_last_ran[1] >= LOCKED_AFTER_S and _waits_for_locks(pid)
        if ran_ns and (is_locked or still_s >= HANGS_AFTER_S):
            stack = _stack_of(pid)
            line = line_of_users_code(stack)
            raise UserCodeError(
                "train",
                f"data process {number} hangs: for {still_s:.0f} s no thread of it has run"
                + (f" ({line})" if line else "")
                + "; it waits for a lock or for an answer that does not come: data_workers 0 reads "
                "in the training's own process, where no lock is lost in a fork",
                stack,
            )
        waits_s = now - self._waits_since
        if waits_s >= self._next_told_s:
            self._next_told_s *= 2
            _log.warning(
                "the training waits for data process %d for %.0f s; it is at:\n%s",
                number,
                waits_s,
                _stack_of(pid),
            )
            self._last_ran = (_ran_ns(pid), self._last_ran[1])


def _ran_ns(pid: int) -> int:
    """How long the threads of the process and of its children have run; 0: unknown."""
    return sum(int(stat.split()[0]) for stat in _of_threads(pid, "schedstat"))


def _waits_for_locks(pid: int) -> bool:
    """Whether each thread of the process and of its children waits for a lock of a process."""
    waits = _of_threads(pid, "wchan")
    return bool(waits) and all(one.startswith("futex") for one in waits)


def _of_threads(pid: int, file: str) -> list[str]:
    """What the kernel's file of that name says of each thread; empty: unknown."""
    found: list[str] = []
    with suppress(psutil.Error, OSError):
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            found += (path.read_text() for path in Path(f"/proc/{one.pid}/task").glob(f"*/{file}"))
    return found


def _stack_of(pid: int) -> str:
    """Where the process's main thread is, as in a traceback; empty if it does not tell."""
    with suppress(OSError):
        files = Path(f"/proc/{pid}/fd").iterdir()
        file = next((one for one in files if _STACK in str(one.readlink())), None)
        if file is None:
            return ""
        before, told = file.read_text(), ""
        os.kill(pid, signal.SIGUSR1)
        deadline = time.monotonic() + _STACK_S
        while time.monotonic() < deadline:
            time.sleep(_STACK_S / 20)
            earlier, told = told, file.read_text()[len(before) :]
            if told and told == earlier:
                break
        # The system's handler names the most recent call first.
        calls = reversed(_CALL.findall(told))
        return "\n".join(f'  File "{file}", line {line}, in {name}' for file, line, name in calls)
    return ""


def _in_shared_memory(batch: Any) -> Any:
    """The batch, with its tensors where the rank can read them, in a process that fetches ahead.

    torch does so in a thread, as it sends the batch: an error there is lost, and the rank waits.
    """
    if get_worker_info() is None:
        return batch
    tensors = list(_tensors_of(batch))
    storages = {one.untyped_storage().data_ptr(): one.untyped_storage() for one in tensors}
    size_bytes = sum(one.nbytes() for one in storages.values())
    try:
        room = os.statvfs(_SHARED_MEMORY)
        if room.f_bavail * room.f_frsize < size_bytes:
            return DataError(_no_room(size_bytes))
        for tensor in tensors:
            tensor.share_memory_()
    except OSError:  # there is no such folder
        return batch
    except RuntimeError as error:
        return DataError(f"{_no_room(size_bytes)} ({error})")
    return batch


def _tensors_of(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (dict, list, tuple)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _tensors_of(one)


def _no_room(size_bytes: int) -> str:
    room = os.statvfs(_SHARED_MEMORY)
    return (
        f"a batch of {size_bytes / 1e6:.1f} MB does not fit into {_SHARED_MEMORY}, which has "
        f"{room.f_bavail * room.f_frsize / 1e6:.1f} of {room.f_blocks * room.f_frsize / 1e6:.1f} "
        "MB free: give the container more shared memory (docker run --shm-size=2g; in Kubernetes "
        "an emptyDir with medium: Memory), or set data_workers to 0"
    )


def _set_up_process(number: int) -> None:
    if sys.platform == "linux":
        # For a look at a process that hangs; Python's own handler of the signal would end it.
        file = os.memfd_create(_STACK)
        faulthandler.register(signal.SIGUSR1, file=file, all_threads=False)
    _die_with_the_rank(number)


def _die_with_the_rank(_: int) -> None:
    """Let the kernel end this process when its rank ends.

    The forked process holds the sockets of its rank's process group. It polls its parent every
    five seconds only, and until then the other ranks would not notice that the rank has died.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        # The kernel sends no signal for a rank that died before this call.
        rank = multiprocessing.parent_process()
        if rank is not None and rank.pid != os.getppid():
            os._exit(1)
