"""Restoring from a disk, and opening a run that has committed ten thousand times."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.checkpoint.bench import Bench
from benchmarks.checkpoint.ranks import Ranks
from benchmarks.checkpoint.training import Rank

STATE_MB = 560
NUM_COMMITS = 10_000


def measure_restore(bench: Bench) -> None:
    """Verified, into live tensors, against a plain load and one digest pass; files in memory."""
    report, folder = bench.report, bench.fresh()
    state_mb, rounds = (3, 3) if bench.is_quick else (STATE_MB, 9)
    task = {"storage": str(folder), "state_mb": state_mb}
    with Ranks(folder, "restore", 1).start(start_restore, task) as reader:
        for number in range(rounds + 1):
            for name in ("evertrain", "plain load and digest"):
                (seconds,) = reader.ask("run", name=name)
                if number:
                    report.add(f"restore: {name}, ms", seconds * 1e3)
        reader.ask("close")
    ours = report.median("restore: evertrain, ms")
    ratio = ours / report.median("restore: plain load and digest, ms")
    report.figure("restore_vs_load_and_digest", ratio)


def measure_open(bench: Bench) -> None:
    """Opening a run and choosing its checkpoint after 10 commits and after 10,000, 5 kept."""
    report, folder = bench.report, bench.fresh()
    many, rounds = (100, 5) if bench.is_quick else (NUM_COMMITS, 50)
    # In memory: ten thousand commits wait for a disk for minutes.
    storage = tempfile.mkdtemp(prefix="evertrain-bench-", dir="/dev/shm")
    try:
        with Ranks(folder, "open", 1).start(start_open, {"storage": storage}) as opener:
            for name, count in (("after 10", 10), (f"after {many}", many)):
                (seconds,) = opener.ask("commit", run=name.replace(" ", "-"), count=count)
                report.add(f"open: ms of a commit, {name}", seconds / count * 1e3)
            for _ in range(rounds):
                for name in ("after 10", f"after {many}"):
                    (seconds,) = opener.ask("open", run=name.replace(" ", "-"))
                    report.add(f"open {name}, ms", seconds * 1e3)
            opener.ask("close")
    finally:
        shutil.rmtree(storage)
    ratio = report.median(f"open after {many}, ms") / report.median("open after 10, ms")
    report.figure("open_10000_vs_10", ratio)


def start_restore(task: dict[str, Any]) -> Callable[..., Any]:
    """A process that restores; what carries out its commands."""
    restoring = Restoring(**task)
    return lambda command, **arguments: getattr(restoring, command)(**arguments)


class Restoring:
    """One checkpoint, read in two ways."""

    def __init__(self, storage: str, state_mb: float) -> None:
        import torch

        from train_core.rank.checkpoint.packing import pack

        self.rank = _alone(storage, state_mb)
        self.rank.turn(steps=1)
        self.rank.turn(steps=1, mode="save once")
        (self.checkpoint,) = self.rank.folder.checkpoints()
        self.folder = Path(storage, "run", self.checkpoint.key)
        state = self.rank.trainer.state.capture()
        self.live = {name: torch.empty_like(t) for name, t in pack(state)[1].items()}

    def run(self, name: str) -> float:
        """Seconds until the state lies in the live tensors."""
        begin = time.perf_counter()
        found = self._ours() if name == "evertrain" else self._plain()
        for path, tensor in self.live.items():
            tensor.copy_(found[path])
        return time.perf_counter() - begin

    def close(self) -> None:
        """End what was started."""
        self.rank.close()

    def _ours(self) -> dict[str, Any]:
        from train_core.rank.checkpoint.packing import pack
        from train_core.rank.checkpoint.reader import load_state

        return pack(load_state(self.rank.folder.store, self.checkpoint))[1]

    def _plain(self) -> dict[str, Any]:
        from blake3 import blake3
        from safetensors.torch import load_file

        found = {}
        for file in self.folder.glob("*.safetensors"):
            blake3().update_mmap(file).hexdigest()
            part = file.name.partition(".")[0].partition("-")[0]
            found |= {f"{part}/{name}": tensor for name, tensor in load_file(file).items()}
        return found


def start_open(task: dict[str, Any]) -> Callable[..., Any]:
    """A process that commits and opens; what carries out its commands."""
    opening = Opening(**task)
    return lambda command, **arguments: getattr(opening, command)(**arguments)


class Opening:
    """Runs with many commits of a tiny checkpoint."""

    def __init__(self, storage: str) -> None:
        self.storage = storage
        self.rank = _alone(f"{storage}/template", 0.01)
        self.rank.turn(steps=1)
        self.rank.turn(steps=1, mode="save once")
        (self.template,) = self.rank.folder.checkpoints()

    def commit(self, run: str, count: int) -> float:
        """Seconds of so many commits: files, journal, manifest, retention."""
        from train_core.storage.cleanup.retention_after_commit import delete_superseded
        from train_core.storage.records.journal import Entry, append
        from train_core.storage.records.names import CheckpointName
        from train_core.storage.records.verified_files import write_file
        from train_core.storage.run_folder import RunFolder
        from train_core.storage.run_writer import RunWriter

        folder = RunFolder(self.storage, run)
        writer = RunWriter(folder, 1)
        config = self.rank.trainer.config.model_copy(update={"keep_last": 5})
        manifest = self.template.manifest
        source = self.rank.folder.store
        data = {f.name: source.read(f"{self.template.key}/{f.name}") for f in manifest.files}
        begin = time.perf_counter()
        for step in range(1, count + 1):
            name = CheckpointName(step, 1)
            for file, content in data.items():
                write_file(folder.store, f"checkpoints/{name}/{file}", memoryview(content))
            entry = Entry(step=step, time=time.time(), metrics={"train/loss": 1 / step})
            journal = append(folder.store, () if step == 1 else manifest.journal, [entry], 1)
            changed = {
                "step": step,
                "journal": journal,
                "created_at": datetime.now(UTC).isoformat(),
            }
            manifest = manifest.model_copy(update=changed)
            writer.commit(manifest)
            delete_superseded(writer, config)
        return time.perf_counter() - begin

    def open(self, run: str) -> float:
        """Seconds to open the run and to have the newest good checkpoint's state."""
        from train_core.rank.checkpoint.reader import Assembly
        from train_core.rank.checkpoint.restore import newest_good
        from train_core.rank.distributed.group import Group
        from train_core.storage.run_folder import RunFolder

        begin = time.perf_counter()
        found = newest_good(RunFolder(self.storage, run), Group.current(), Assembly)
        seconds = time.perf_counter() - begin
        assert found is not None
        return seconds

    def close(self) -> None:
        """End what was started."""
        self.rank.close()


def _alone(storage: str, state_mb: float) -> Rank:
    return Rank(storage, {"state_mb": state_mb})
