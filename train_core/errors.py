"""Errors of evertrain: each takes facts, writes its message and survives pickling.

An error says what is wrong, which value caused it and how to mend it. `ConfigError` and its
subclasses are the user's to mend and are never retried; a `StorageError` may pass by itself.
"""

from __future__ import annotations

import os
import re
import sys
import traceback as tracebacks
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import PurePath
from types import ModuleType

from train_core.text.shown_text import without_secrets
from train_core.transient_errors import passes_by_itself


class EvertrainError(Exception):
    """Base of all errors that evertrain raises on purpose.

    A message is shown in many places, so it loses the logins of its URLs here, at once.
    """

    def __init__(self, *facts: object) -> None:
        super().__init__(*(without_secrets(one) if isinstance(one, str) else one for one in facts))


class ConfigError(EvertrainError, ValueError):
    """A request cannot be met as it is. Never retried."""


class WorkloadError(ConfigError):
    """A workload cannot be imported, or breaks the contract of `train_core.Workload`."""


class DataError(ConfigError):
    """A dataset is missing, truncated or empty."""


class ResourceError(ConfigError):
    """A request needs more than the cluster can give."""


class HiddenLoginError(ConfigError):
    """A URL is needed that was recorded without its login."""

    def __init__(self, what: str) -> None:
        self.what = what
        super().__init__(
            f"the login in {what} is not recorded: give the URL again, with it; a URL needs none "
            "if the login is in the environment, where the storage's client finds it"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.what,)


class RunConflictError(ConfigError):
    """A run of that name exists and was asked for with other parameters."""

    def __init__(self, run: str, differences: dict[str, tuple[object, object]]) -> None:
        self.run = run
        self.differences = differences
        shown = "; ".join(
            f"{name}: was {was!r}, asked for {now!r}" for name, (was, now) in differences.items()
        )
        super().__init__(
            f"run {run!r} exists and these parameters may not change in it: {shown}. "
            f"Continue with the recorded values (`evertrain runs resume {run}`), or start a run "
            "under another name."
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.run, self.differences)


class RunBusyError(EvertrainError, RuntimeError):
    """Another process drives the run."""

    def __init__(self, run: str, holder: str) -> None:
        self.run = run
        self.holder = holder
        super().__init__(
            f"run {run!r} is being driven by {holder}. "
            f"Wait for it to end, stop it (`evertrain runs stop {run}`), or take another name."
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.run, self.holder)


class NothingBegunError(EvertrainError, RuntimeError):
    """A request was met without a run: there is no more to do, and the message says why."""


class CheckedOnlyError(NothingBegunError):
    """A dry run of a training function: it was checked, and `plan` is what a run would do."""

    def __init__(self, plan: str) -> None:
        self.plan = plan
        super().__init__(
            "all checks have passed, and nothing was trained or stored: evertrain cannot cut a "
            f"training function short. A run would\n{plan}"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.plan,)


class UnchangedError(NothingBegunError):
    """Nothing that counts has changed since `run`: there is nothing to train."""

    def __init__(self, run: str, waiting_version: int | None = None) -> None:
        self.run = run
        self.waiting_version = waiting_version
        """Of that run, if a person has to approve it."""
        since = f"no new data since run {run}"
        if waiting_version is not None:
            waits = f"whose version {waiting_version} waits for approval"
            since = f"no new data: run {run}, {waits}, has it"
        super().__init__(f"{since}: nothing is trained")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.run, self.waiting_version)


class StoppedError(EvertrainError, RuntimeError):
    """The run was asked to stop, and may be continued after its newest checkpoint."""

    def __init__(self, run: str, step: int) -> None:
        self.run = run
        self.step = step
        super().__init__(
            f"run {run!r} was stopped; it is saved up to step {step}. "
            f"`evertrain runs resume {run}` goes on"
            if step
            else f"run {run!r} was stopped before its first checkpoint was found"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.run, self.step)


class AttemptLostError(Exception):
    """Another rank has died: this one leaves the attempt, and its process is as good as before.

    No OSError, which a storage's client would retry and a checkpoint may survive; and no
    EvertrainError, which ranks tell each other.
    """

    def __init__(self, cause: str, kept_step: int = 0) -> None:
        super().__init__(cause, kept_step)
        self.kept_step = kept_step
        """The steps done in the state that the process keeps; 0: it keeps none."""

    def __str__(self) -> str:
        return str(self.args[0])


class FencedError(EvertrainError, RuntimeError):
    """This attempt was replaced by a newer one and may no longer write."""

    def __init__(self, attempt: int, newer: int) -> None:
        self.attempt = attempt
        self.newer = newer
        super().__init__(
            f"attempt {attempt} was replaced by attempt {newer}: it stops without writing."
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.attempt, self.newer)


class StorageError(EvertrainError, OSError):
    """Storage refused, failed or lacks what evertrain needs of it."""


class UnsavedError(StorageError):
    """Checkpoints have failed for longer than `max_unsaved_s`."""

    def __init__(self, seconds: float, step: int, last_good: str | None, cause: str) -> None:
        self.seconds = seconds
        self.step = step
        self.last_good = last_good
        self.cause = cause
        kept = f"the last good one is {last_good}" if last_good else "none was saved before"
        super().__init__(
            f"checkpoints have failed for {seconds:.0f} s, up to step {step}; {kept}. The newest "
            f"failure: {cause}. Repair the storage and continue the run by its name; max_unsaved_s "
            "limits the time that a training goes on unsaved"
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.seconds, self.step, self.last_good, self.cause)


class CheckpointError(EvertrainError, ValueError):
    """A checkpoint is incomplete, altered or not readable."""


class NotFiniteError(EvertrainError, FloatingPointError):
    """The loss became NaN or infinite, or weights became NaN although the loss was a number."""

    def __init__(
        self, step: int, loss: float, last_good: str | None, what: str = "the loss"
    ) -> None:
        self.step = step
        self.loss = loss
        self.last_good = last_good
        self.what = what
        kept = f"the last good checkpoint is {last_good}" if last_good else "nothing was saved yet"
        super().__init__(
            f"{what} became {loss} at step {step}; {kept}. "
            "Lower the learning rate, clip gradients, or look at that step's samples."
        )

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.step, self.loss, self.last_good, self.what)


class TrackingError(ConfigError):
    """The MLflow server refuses a request (a wrong address, 401, 404)."""


class StageError(EvertrainError, RuntimeError):
    """A stage failed in the driver process; it may pass when it is tried again."""

    def __init__(self, stage: str, summary: str, traceback: str = "") -> None:
        self.stage = stage
        self.summary = without_secrets(summary)
        self.traceback = without_secrets(traceback)
        super().__init__(f"{stage}: {summary}")

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (self.stage, self.summary, self.traceback)


class JobEndedError(StageError):
    """The job that drives a run on a cluster ended without an answer; another one may follow."""


class GaveUpError(StageError):
    """A stage failed again after the last retry that is allowed."""


class UserCodeError(StageError):
    """The workload's own code raised; carries the first failing rank's traceback. Never retried."""

    @classmethod
    def raised_by(
        cls, stage: str, where: str, error: BaseException, traceback: str, own: str | None = None
    ) -> UserCodeError:
        """What the user's code raised, with the line that did; `where` says on which rank or file.

        The traceback is given apart, since Ray hands on an exception without its own; `own` is the
        part of it that is this error's, if it has those of other ranks, too.
        """
        line = line_of_users_code(traceback if own is None else own)
        at = f"{where}: " if where else ""
        return cls(stage, f"{at}{words_of(error)}" + (f" ({line})" if line else ""), traceback)


_FRAME = re.compile(r'File "([^"<]+)", line (\d+), in (\S+)')
_LIBRARIES = re.compile(
    r"/(site-packages|dist-packages|lib/python3[^/]*|train_core|evertrain_(flows|tasks)"
    r"|torchinductor_[^/]*)/"
)
_MOST_CHARS = 500
_COMPILED = (".pyx", ".pxi")
"""What Cython's modules call their sources, such as pyarrow's `table.pxi`, without a folder."""
_of_users: set[str] = set()
"""Where installed modules of the user's own lie, as far as this process has imported them."""


def count_as_users(module: ModuleType) -> None:
    """Count the lines of a module that a user named, and of its package, as the user's code.

    A workload may be installed beside the libraries, whose lines are not the user's.
    """
    package = sys.modules.get(module.__name__.partition(".")[0], module)
    for place in (*getattr(package, "__path__", ()), module.__file__):
        if place and not module.__name__.startswith("train_core."):
            _of_users.add(str(place))


def line_of_users_code(traceback: str) -> str:
    """The innermost line of a traceback that is of no library: `table.py, line 41, in train`.

    Empty if all lines are of installed packages, of Python's or of evertrain.
    """
    found = [one for one in _FRAME.findall(traceback) if _is_users(one[0])]
    if not found:
        return ""
    file, line, function = found[-1]
    return f"{PurePath(file).name}, line {line}, in {function}"


def _is_users(file: str) -> bool:
    if file.endswith(_COMPILED):
        return False
    if not _LIBRARIES.search(file):
        return True
    return any(file == place or file.startswith(place + os.sep) for place in _of_users)


def words_of(error: BaseException) -> str:
    """The words of an error of another library, or of a user's module, in one line.

    What was noted on the error, such as the sample that was read, ends the line.
    """
    if isinstance(error, SystemExit):
        return f"it called sys.exit({'' if error.code is None else repr(error.code)})"
    said = " ".join(str(error).split()).rstrip(".")
    said = said if len(said) <= _MOST_CHARS else f"{said[:_MOST_CHARS]}…"
    return ", ".join([f"{type(error).__name__}: {said}", *getattr(error, "__notes__", ())])


def of_stage(stage: str, error: BaseException, where: str = "") -> StageError:
    """An error of no class of ours as a stage's: the user's mistake, or the infrastructure's.

    It is the user's if a line of the user's code raised it or called what did, unless it passes by
    itself.
    """
    trace = "".join(tracebacks.format_exception(error))
    if line_of_users_code(trace):
        return _of_users_code(stage, where, error, trace)
    return StageError(stage, words_of(error), trace)


@contextmanager
def users_code(stage: str, where: str) -> Iterator[None]:
    """Raise an error of the user's code inside the block as UserCodeError, with its traceback.

    One that passes by itself, such as a connection that broke, is a StageError.
    """
    try:
        yield
    except EvertrainError:
        raise
    # A workload's own sys.exit() would end the worker.
    except (Exception, SystemExit) as error:
        # Ray hands on an exception without its traceback.
        raise _of_users_code(stage, where, error, tracebacks.format_exc()) from error


def _of_users_code(stage: str, where: str, error: BaseException, traceback: str) -> StageError:
    if passes_by_itself(error):
        at = f"{where}: " if where else ""
        return StageError(stage, f"{at}{words_of(error)}", traceback)
    return UserCodeError.raised_by(stage, where, error, traceback)
