"""Training in this very process, into a run folder with its record."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from train_core.config import FunctionTraining, TrainConfig, WorkloadTraining
from train_core.loading import load_workload, workload_class
from train_core.rank.checkpoint.progress import Progress
from train_core.rank.data.fitted import entry_of, fit
from train_core.rank.data.recorded_workload import with_monitor
from train_core.rank.distributed.group import Group
from train_core.rank.loop import Trainer
from train_core.storage.records.run_record import NEWEST_STEP_RULES, RunRecord
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import create_run
from train_core.timing import TIMING, Timing
from train_core.workload import Workload, load_split


def run(folder: RunFolder, attempt: int = 1, timing: Timing = TIMING, **config: Any) -> Progress:
    """Train the tiny workload, or go on with it."""
    given = {"workload": "tests.rank.tiny:Tiny", "batch_size": 32, "eval_batch_size": 16}
    asked = TrainConfig(**given | config)
    if not folder.exists():
        create(folder, asked)
    group = Group.current(uses_gpu=asked.uses_gpu)
    return Trainer(folder, with_monitor(asked), attempt, group, timing=timing).run()


def create(
    folder: RunFolder, config: TrainConfig, *, fitted: bytes | None = None, **facts: Any
) -> None:
    """Create the run, with `facts` beyond its configuration; its workload fits, or has `fitted`."""
    fitted = fitted or fitted_by(config)
    if isinstance(config.trainable, WorkloadTraining):
        # As a driver writes it out.
        config = config.model_copy(update={"monitor": config.monitor or "validation/accuracy"})
    facts["fitted"] = None if fitted is None else entry_of(fitted)
    record = RunRecord(
        name=folder.name,
        created_at=datetime.now(UTC).isoformat(),
        config=config.fixed(),
        pipeline={},
        fingerprint={},
        **{"step_rules": NEWEST_STEP_RULES, "datasets": {}, **facts},
    )
    create_run(folder, record, fitted=fitted)


def fitted_by(config: TrainConfig) -> bytes | None:
    """What the workload fits to its training split now; None: nothing."""
    is_functions = isinstance(config.trainable, FunctionTraining)
    if is_functions or workload_class(config.workload).fit is Workload.fit:
        return None
    workload = load_workload(config.workload, config.settings)
    return fit(workload, load_split(workload, "train"))
