"""One rank of a training without Ray: `torchrun … -m train_core.tools.standalone TASK.json`.

`train_core.client.verify_resume` starts it, with a storage of its own: no other process uses the
run meanwhile, so its lease needs no heartbeat.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from train_core.datasets.protocols import Dataset, Stream, WrappedDataset, is_stream
from train_core.errors import ConfigError
from train_core.loading import load_workload
from train_core.policy.samples.steps import MicroBatch
from train_core.rank.data.fitted import entry_of, fit, give
from train_core.rank.data.recorded_workload import files_in_record, with_monitor
from train_core.rank.distributed.group import Group
from train_core.rank.loaded_workload import LoadedWorkload
from train_core.rank.loop import Trainer
from train_core.requests import StandaloneTask, died_mark, digests_file, error_file
from train_core.storage.records.data_files import FileList
from train_core.storage.records.run_record import NEWEST_STEP_RULES, RunRecord
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import begin_attempt, create_run
from train_core.text.log_lines import set_up_logging
from train_core.tools.plain_training import PlainTraining
from train_core.tools.provenance import fingerprint
from train_core.tools.step_digests import DigestWriter
from train_core.workload import Batch, Workload, fits, load_split, pinned_files


class Beginning(WrappedDataset):
    """The first samples of a dataset or a stream; otherwise it is that dataset."""

    def __init__(self, whole: Dataset | Stream, num_samples: int) -> None:
        super().__init__(whole)
        self._num_samples = min(len(whole), num_samples)

    def __len__(self) -> int:
        return self._num_samples

    def __getattr__(self, name: str) -> Any:
        if name == "whole" or (name.startswith("_") and name != "__getitems__"):
            raise AttributeError(name)
        return getattr(self.whole, name)


def shortened(loaded: LoadedWorkload, num_samples: int) -> LoadedWorkload:
    """The same workload, with at most so many samples in each split."""
    return replace(
        loaded,
        train_set=Beginning(loaded.train_set, num_samples),
        validation_set=Beginning(loaded.validation_set, num_samples),
    )


class StandaloneTrainer(Trainer):
    """A trainer that dies by SIGKILL, in the middle of a step, once, if its task says so."""

    def __init__(
        self, task: StandaloneTask, task_file: Path, attempt: int, group: Group, **more: Any
    ) -> None:
        self._task_file = task_file
        self._kill_after = None if died_mark(task_file).exists() else task.kill_after
        folder = RunFolder(task.storage, task.run)
        loaded = shortened(LoadedWorkload.of_run(folder, task.config), task.max_samples)
        super().__init__(folder, task.config, attempt, group, loaded=loaded, **more)
        self._digests = DigestWriter(digests_file(task_file, group.rank))

    def step(self) -> None:
        """As of a trainer; its digests are written."""
        super().step()
        state = self.learner
        if self.group.is_rank0 and not state.is_sharded:
            self._digests.add_state(state.model, state.optimizer)
        self._digests.end_step(self.progress.step)

    def _forward(self, micro: MicroBatch, batch: Batch) -> torch.Tensor:
        if self.group.is_rank0 and self.progress.step == self._kill_after:
            # The save in flight is committed first, so that the same checkpoint is resumed always.
            self.checkpointer.wait()
            died_mark(self._task_file).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        weighted = super()._forward(micro, batch)
        self._digests.add_pass(micro.shard, batch, weighted)
        return weighted


def with_epochs(task: StandaloneTask) -> StandaloneTask:
    """The task with as many epochs as its steps take, and with the workload's monitor.

    Raises ConfigError for a bad workload.
    """
    config = with_monitor(task.config)
    whole = load_workload(config.workload, config.settings).dataset("train")
    plan = config.step_plan(len(Beginning(whole, task.max_samples)))
    epochs = -(-config.max_steps // max(plan.steps_per_epoch, 1))
    return task.model_copy(update={"config": config.model_copy(update={"epochs": epochs})})


def train(task: StandaloneTask, task_file: Path) -> None:
    """Run one rank: create the run or continue it, train, and release the lease."""
    group = Group.current()
    task = with_epochs(task)
    folder = RunFolder(task.storage, task.run)
    held = None
    if group.is_rank0:
        if not folder.exists():
            create_run(folder, *record_of(task))
        held = begin_attempt(folder)
    attempt = group.broadcast_from_rank0(held.attempt if held else 0)
    StandaloneTrainer(task, task_file, attempt, group).run()
    if held:
        held.release()


def train_plainly(task: StandaloneTask, task_file: Path) -> None:
    """Train the task's steps in plain PyTorch, for the digests of each step beside `task_file`.

    Raises ConfigError for a training that plain PyTorch cannot repeat: of a stream, or of strategy
    fsdp.
    """
    task = with_epochs(task)
    config = task.config
    if config.strategy == "fsdp":
        raise ConfigError("strategy fsdp rounds otherwise for each number of workers")
    workload = load_workload(config.workload, config.settings)
    train_set = load_split(workload, "train")
    give(workload, _fitted(task, workload))
    if is_stream(train_set):
        raise ConfigError("a stream has an order of its own")
    digests = DigestWriter(digests_file(task_file))
    dataset = Beginning(train_set, task.max_samples)
    training = PlainTraining(workload, config, dataset, on_batch=digests.add_pass)
    if training.waits_for_metric:
        raise ConfigError("a ReduceLROnPlateau goes by validations, which only a run has")
    for step in range(config.max_steps):
        training.step(step)
        digests.add_state(training.model, training.optimizer)
        digests.end_step(step + 1)


def record_of(task: StandaloneTask) -> tuple[RunRecord, FileList | None, bytes | None]:
    """The record of a run that begins, the files that its workload names, and what it fits."""
    workload = load_workload(task.config.workload, task.config.settings)
    files = pinned_files(workload)
    fitted = _fitted(task, workload)
    record = RunRecord(
        name=task.run,
        created_at=datetime.now(UTC).isoformat(),
        config=task.config.recorded(),
        pipeline={},
        fingerprint=fingerprint(task.config),
        datasets={},
        fitted=None if fitted is None else entry_of(fitted),
        step_rules=NEWEST_STEP_RULES,
    )
    return files_in_record(record, files), files, fitted


def _fitted(task: StandaloneTask, workload: Workload[Any]) -> bytes | None:
    """What the workload fitted when the task's first run began, which may be now."""
    if not fits(workload):
        return None
    if task.fitted_of:
        folder = RunFolder(task.storage, task.fitted_of)
        return folder.fitted_of(folder.record())
    return fit(workload, load_split(workload, "train"))


def run_as_rank(task_file: Path, be_rank: Callable[[], None]) -> None:
    """Call it in the process of a rank; ends the process with code 1 if it raises.

    The first error of all ranks is left for the waiting process.
    """
    set_up_logging(sys.stderr)
    try:
        be_rank()
    except Exception as error:  # noqa: BLE001 (reported to the waiting process)
        traceback.print_exc()
        kind = "config" if isinstance(error, ConfigError) else type(error).__name__
        message = str(error) if kind == "config" else f"{kind}: {error}"
        # Only the first error is kept; the others are connections that broke because of it.
        with suppress(FileExistsError), error_file(task_file).open("x") as file:
            json.dump({"kind": kind, "message": message}, file)
        sys.exit(1)
    logging.shutdown()


def main() -> None:
    """Entry point: the file with the task is the only argument."""
    task_file = Path(sys.argv[1])
    task = StandaloneTask.model_validate_json(task_file.read_text())
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        dist.init_process_group("gloo")
    run_as_rank(task_file, partial(train, task, task_file))
    if dist.is_initialized():
        # All ranks together: gloo aborts a process that tears its group down while another sends.
        dist.barrier()
    os._exit(0)


if __name__ == "__main__":
    main()
