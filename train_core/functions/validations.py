"""What validation functions measure, in the driver: a checkpoint that awaits it is measured once.

A manifest says that its checkpoint awaits a validation, and an evaluation of that checkpoint says
that it has got it. So it makes no difference in which attempt the folder was reported, nor whether
the function has ended meanwhile.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import Any

import ray
from ray.exceptions import OutOfMemoryError, RayTaskError, WorkerCrashedError
from ray.train import Checkpoint, ValidationConfig

from train_core.config import TrainConfig
from train_core.functions.ray_checkpoints import ray_checkpoint
from train_core.functions.reports.plain_metrics import numbers_and_texts, plain
from train_core.functions.trainer import new_trainer
from train_core.policy.metric_names import VALIDATION
from train_core.storage.coordination import pins
from train_core.storage.records.journal import finite
from train_core.storage.records.manifest import EvaluationManifest
from train_core.storage.records.names import REPORTED_FOLDER, validation_key
from train_core.storage.run_folder import Commit, RunFolder
from train_core.storage.run_writer import ResultWriter
from train_core.timing import TIMING, FunctionTiming

_log = logging.getLogger("train_core.driver")


class _EndedError(Exception):
    """Nobody waits for validations any more."""


class Validations:
    """Runs a trainer's validation function, on one checkpoint after the other, oldest first."""

    def __init__(
        self, folder: RunFolder, config: TrainConfig, timing: FunctionTiming = TIMING.functions
    ) -> None:
        self._folder, self._timing = folder, timing
        self._function = new_trainer(config).validation_config if config.trainer else None
        self._ended = threading.Event()
        self._failure: Exception | None = None
        """Why the newest pass over the checkpoints did not come to its end."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """Run them in a thread while the block runs. What is not done by then, awaits it still."""
        if self._function is None and not _awaiting(self._folder):
            yield
            return
        thread = threading.Thread(target=self._work, name="validations", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._ended.set()
            # One that waits for the storage is left behind.
            thread.join(self._timing.validation_end_s)

    def finish(self, check: Callable[[], None]) -> None:
        """Wait until no checkpoint awaits a validation; `check` is called meanwhile, and may raise.

        Raises StorageError and Ray's errors.
        """
        while _awaiting(self._folder):
            check()
            if self._failure is not None:
                raise self._failure
            time.sleep(self._timing.validation_poll_s)

    def _work(self) -> None:
        while not self._ended.is_set():
            try:
                for checkpoint in _awaiting(self._folder):
                    self._validate(checkpoint)
                self._failure = None
            except _EndedError:
                return
            except Exception as error:  # noqa: BLE001 (of the storage or of Ray: `finish` raises it)
                _log.warning("validations are tried again: %s", error)
                self._failure = error
            self._ended.wait(self._timing.validation_poll_s)

    def _validate(self, checkpoint: Commit) -> None:
        """Measure one checkpoint. One whose function fails or is too slow has no metrics."""
        if self._function is None:
            _log.warning("%s is not validated: there is no validation function", checkpoint.name)
            record_validation(self._folder, checkpoint, {})
            return
        try:
            metrics = self._measure(checkpoint, self._function)
        except (RayTaskError, WorkerCrashedError, OutOfMemoryError, TimeoutError) as error:
            # Of an error of the function, Ray's own text is its traceback.
            cause = error.cause if isinstance(error, RayTaskError) else error
            what = f"{type(cause).__name__}: {cause}"
            _log.warning("the validation of %s failed: %s", checkpoint.name, what)
            _log.info("where it failed: %s", error)
            metrics = {}
        record_validation(self._folder, checkpoint, metrics)

    def _measure(self, checkpoint: Commit, config: ValidationConfig) -> Mapping[str, Any]:
        reported = checkpoint.manifest.reported
        assert reported is not None, "only a reported folder awaits a validation"
        assert reported.requested_validation is not None, "as this one does"
        requested, default = reported.requested_validation, config.task_config
        arguments = {**(default.fn_kwargs or {}), **(requested.fn_kwargs or {})}
        limit_s = (default if requested.fn_kwargs is None else requested).timeout_s
        key = f"{checkpoint.key}/{REPORTED_FOLDER}"
        folder = ray_checkpoint(self._folder.store, key)
        task = ray.remote(_call).options(**config.ray_remote_kwargs)
        result = task.remote(config.fn, folder, arguments)
        try:
            self._wait_for(result, limit_s)
        except BaseException:
            ray.cancel(result, force=True)
            raise
        measured: Mapping[str, Any] = ray.get(result)
        return measured

    def _wait_for(self, result: Any, limit_s: float | None) -> None:
        begun = time.monotonic()
        while not ray.wait([result], timeout=self._timing.validation_poll_s)[0]:
            if self._ended.is_set():
                raise _EndedError
            if limit_s is not None and time.monotonic() - begun > limit_s:
                raise TimeoutError(f"it took longer than timeout_s ({limit_s:g} s)")


def _call(function: Callable[..., Any], folder: Checkpoint, arguments: dict[str, Any]) -> Any:
    """Call a validation function; its metrics as the driver can read them without its libraries."""
    found = function(folder, **arguments)
    if not isinstance(found, Mapping):
        raise TypeError(f"a validation function returns a dict of metrics, and not {found!r}")
    return plain(found)


def record_validation(folder: RunFolder, checkpoint: Commit, metrics: Mapping[str, Any]) -> None:
    """Commit the metrics as an evaluation of the checkpoint, unless it has got it already.

    Any process may do so. Raises FileNotFoundError if the checkpoint was deleted.
    """
    with pins.pinned(folder.store, [checkpoint.name], "evaluate"), suppress(FileExistsError):
        manifest = EvaluationManifest(
            created_at=datetime.now(UTC).isoformat(),
            checkpoint=str(checkpoint.name),
            checkpoint_digest=checkpoint.digest,
            split=VALIDATION,
            num_samples=0,
            max_batches=0,
            metrics=finite(numbers_and_texts(metrics)[0]),
            files=(),
        )
        ResultWriter(folder).commit_result(validation_key(checkpoint.name), manifest)


def _awaiting(folder: RunFolder) -> list[Commit]:
    """The checkpoints that await a validation, oldest first."""
    return [one for one in folder.checkpoints() if one.awaits_validation]
