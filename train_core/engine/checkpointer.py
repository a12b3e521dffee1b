"""The checkpointer: copies the state, then writes and commits it behind the loop's back.

The loop waits for the copy alone. One checkpoint is under way at most; when the next one comes
too early, it waits. The manifest is created when every file is stored: a process that dies
before leaves nothing that counts.
"""

from __future__ import annotations

import logging
import math
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from typing import Any

from train_core.config import TrainConfig
from train_core.engine.checkpoint_files import Snapshot
from train_core.engine.progress import Progress
from train_core.engine.recorder import Recorder
from train_core.engine.retention import delete_superseded
from train_core.errors import EvertrainError, NotFiniteError
from train_core.storage.journal import Entry, finite, write_segment
from train_core.storage.manifest import CheckpointManifest, FileEntry
from train_core.storage.names import CheckpointName
from train_core.storage.run_folder import Checkpoint, RunFolder

_log = logging.getLogger(__name__)


class Checkpointer:
    """Saves checkpoints of one attempt. Rank 0 has one that works; the others' do nothing."""

    def __init__(
        self,
        folder: RunFolder,
        config: TrainConfig,
        attempt: int,
        recorder: Recorder,
        *,
        is_enabled: bool,
    ) -> None:
        self.newest: Checkpoint | None = None
        self._folder = folder
        self._config = config
        self._attempt = attempt
        self._recorder = recorder
        self._is_enabled = is_enabled
        self._snapshot = Snapshot()
        self._thread = ThreadPoolExecutor(1, "checkpointer")
        self._writing: tuple[Future[Checkpoint], list[Entry]] | None = None

    def continue_from(self, checkpoint: Checkpoint) -> None:
        """Go on after this checkpoint, with its journal."""
        self.newest = checkpoint

    def save(self, state: dict[str, Any], progress: Progress) -> None:
        """Copy the state and start to write it. Raises EvertrainError if we were fenced."""
        if not self._is_enabled:
            return
        self.wait()
        self._snapshot.take(state)
        entries = list(self._recorder.pending)
        facts = {
            "step": progress.step,
            "epoch": progress.epoch,
            "samples_seen": progress.samples_seen,
            "metrics": finite(progress.metrics),
            "validated": progress.validated_step == progress.step,
            "stopped_by": progress.stopped_by,
            "elapsed_s": progress.elapsed_s,
        }
        self._writing = self._thread.submit(self._write, facts, entries), entries

    def wait(self, *, must_succeed: bool = False) -> None:
        """Wait for the checkpoint under way.

        One that failed is warned about: its steps are covered by the next one. Raises the error
        if `must_succeed`, and in any case if a newer attempt has the run.
        """
        if self._writing is None:
            return
        future, entries = self._writing
        self._writing = None
        try:
            self.newest = future.result()
            self._recorder.forget(entries)
        except (EvertrainError, OSError) as error:
            if must_succeed or not isinstance(error, OSError):
                raise
            _log.warning("a checkpoint was not saved, training goes on: %s", error)

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown()

    def _write(self, facts: dict[str, Any], entries: list[Entry]) -> Checkpoint:
        if self._snapshot.has_nan():
            last_good = str(self.newest.name) if self.newest else None
            raise NotFiniteError(facts["step"], math.nan, last_good, "a weight of the model")
        name = CheckpointName(facts["step"], self._attempt)
        store = self._folder.store
        files = []
        for file, data in self._snapshot.files().items():
            store.write(f"checkpoints/{name}/{file}", data, durable=True)
            files.append(FileEntry.of(file, data))
        journal = self.newest.manifest.journal if self.newest else ()
        if entries:
            journal = (*journal, write_segment(store, entries, self._attempt))
        manifest = CheckpointManifest(
            created_at=datetime.now(UTC).isoformat(),
            attempt=self._attempt,
            files=tuple(files),
            journal=journal,
            **facts,
        )
        self._folder.commit(name, manifest)
        delete_superseded(self._folder, self._config, self._attempt)
        return self._folder.checkpoint(name)
