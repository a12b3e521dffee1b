"""The rehearsal of a workload: a few samples are trained, restored and measured in this process.

It takes about a second of this process's CPU, without Ray or storage, and says in one line each
what would go wrong later: what it refuses, and what it only tells.
"""

from __future__ import annotations

import math
import numbers
import random
import time
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau
from torch.utils._pytree import tree_leaves

from train_core.config import LOCAL, TrainConfig
from train_core.datasets.few_samples import FewSamples
from train_core.datasets.protocols import Dataset, Stream, fetch, is_stream
from train_core.errors import EvertrainError, NotFiniteError
from train_core.policy.findings import FindingName
from train_core.quick_imports import import_for_optimizers
from train_core.rank.checkpoint.progress import Progress
from train_core.rank.data.batches import epoch_order, model_to_device
from train_core.rank.distributed.group import set_deterministic
from train_core.rank.metrics.evaluation_loop import check_split, measure_shard, set_modes
from train_core.rank.model_checks import check_model
from train_core.rehearsal.engine_training import EngineTraining
from train_core.rehearsal.few_rows import NUM_ROWS, device_of, raised
from train_core.rehearsal.metrics import try_metrics
from train_core.rehearsal.outputs import (
    try_evaluation,
    try_loss,
    try_predictions,
    try_row_alone,
    try_scores,
    try_served,
)
from train_core.rehearsal.steps import STEPS, Trial, try_resume, try_steps
from train_core.results import Finding, Rehearsal
from train_core.workload import Workload

_SAMPLES_PER_SHARD = 4
_MOST_ACCUMULATION = 2
_MOST_PARAMETERS = 30_000_000
"""Of larger models the copies would take gigabytes, and a step seconds."""
_MOST_S = 30.0
"""After so many seconds nothing more is begun."""
_MOST_SAMPLE_BYTES = 8_000_000
_MOST_SAMPLE_S = 0.3
_MOST_RATES = 2_000
_NUM_RATES = 22
"""Of those after `_MOST_RATES`."""
_OF_FEW_ROWS = {"predictions", "metric", "loss"}
"""What a few rows may be too few for."""


def rehearse(
    new_workload: Callable[[], Workload[Any]],
    served_workload: Callable[[], Workload[Any]],
    config: TrainConfig,
    train_set: Dataset | Stream,
    validation_set: Dataset,
    device: torch.device,
) -> Rehearsal:
    """Try a workload on a few samples of its data, computed on the device.

    `new_workload` makes one as a worker has it, `served_workload` one as a served model has it.

    Raises WorkloadError for what the engine refuses by itself, and what the workload's code raises
    where a step of the training would raise it, too.
    """
    begin_cpu_s = time.thread_time()
    rehearsing = _Rehearsing(new_workload, served_workload, config, device)
    with _as_it_was():
        try:
            rehearsing.run(train_set, validation_set)
        except EvertrainError:
            raise
        except Exception as error:
            if not rehearsing.is_of_workers(error):
                raise
            rehearsing.leave_out(f"the rest: here the workload raises {raised(error)}")
    return Rehearsal(
        tried=rehearsing.tried,
        findings=rehearsing.findings,
        left_out=rehearsing.left_out,
        is_cut_short=rehearsing.is_cut_short,
        cpu_s=time.thread_time() - begin_cpu_s,
    )


class _Rehearsing:
    """What was tried so far, and found."""

    def __init__(
        self,
        new_workload: Callable[[], Workload[Any]],
        served_workload: Callable[[], Workload[Any]],
        config: TrainConfig,
        device: torch.device,
    ) -> None:
        self._new_workload = new_workload
        self._served_workload = served_workload
        self._config = config
        self._device = device
        self._begin_s = time.monotonic()
        self.tried: list[FindingName] = []
        self.findings: list[Finding] = []
        self.left_out: list[str] = []
        self.is_cut_short = False

    def run(self, train_set: Dataset | Stream, validation_set: Dataset) -> None:
        """Try all that there is time for."""
        for split, dataset in (("train", train_set), ("validation", validation_set)):
            check_split(dataset, split)
        if self._config.strategy == "fsdp":
            self.left_out.append(
                "all: with strategy fsdp the model may not fit into one process. If it does, "
                "`evertrain check` without the strategy tries it"
            )
            return
        workload = self._new_workload()
        model = workload.model()
        check_model(model, self._config.shards)
        num_parameters = sum(parameter.numel() for parameter in model.parameters())
        if num_parameters > _MOST_PARAMETERS:
            self.left_out.append(f"all: the model has {num_parameters:,} parameters")
            return
        import_for_optimizers()
        model = model_to_device(model, self._device, channels_last=self._config.channels_last)
        plan = self._config.step_plan(len(train_set))
        total_steps = Progress().total_steps(self._config, plan)
        self._try("schedule", _try_schedule(workload, model, total_steps))
        if is_stream(train_set):
            self.left_out.append("gradients, state: the training split is a stream")
        elif too_much := _too_much(train_set):
            self.leave_out(f"all but schedule: {too_much}")
            return
        else:
            engine = self._train(train_set, total_steps)
            if engine is not None:
                # What `model()` and training left in the workload belongs to it.
                workload, model = engine.workload, engine.learner.model
        if self._has_told("repeatable"):
            self.left_out.append("metric, loss, predictions: results cannot be repeated")
        else:
            self._measure(workload, model, validation_set)

    def _train(self, train_set: Dataset, total_steps: int) -> EngineTraining | None:
        """Train and restore; the training, if there was time for one."""
        engine: EngineTraining | None = None
        found: list[Finding] = []
        for num_shards in (1, 2)[: min(2, self._config.shards)]:
            if found:
                self.left_out.append(f"gradients on {num_shards} shards: one shard shows a fault")
                break
            if not self._has_time(f"gradients on {num_shards} shards"):
                break
            trial = _trial(
                self._new_workload, self._config, train_set, num_shards, total_steps, self._device
            )
            try:
                engine, found = try_steps(trial)
            except Exception as error:
                if isinstance(error, EvertrainError) and not isinstance(error, NotFiniteError):
                    raise
                # It may need more samples than it was given: as many as in the training.
                trial = _whole(trial, self._config, train_set)
                engine, found = try_steps(trial)
            self._try("gradients", found)
        if found:
            self.left_out.append("state: a step before it is wrong")
        elif engine is not None and self._has_time("state"):
            self._try("state", try_resume(trial, engine))
        return engine

    def _measure(self, workload: Workload[Any], model: nn.Module, validation_set: Dataset) -> None:
        """Metrics, loss and predictions of some rows of the validation split."""
        # Over all of it: rows that lie side by side are often of one class.
        places = np.unique(np.linspace(0, len(validation_set) - 1, NUM_ROWS).astype(np.int64))
        rows = FewSamples(validation_set, places)
        config = self._config
        modes = {module: module.training for module in model.modules()}
        model.eval()
        is_validated = False

        def attempt(name: FindingName, found: Iterable[Finding]) -> None:
            nonlocal is_validated
            if self._has_time(name) and not self._try(name, found) and not is_validated:
                # A few rows may be too few: those of the first validation are not.
                _validate_first_batch(workload, model, validation_set, config)
                is_validated = True

        try:
            with torch.no_grad():
                # What fails here fails below, and is told there.
                with suppress(Exception):
                    self.findings += try_evaluation(workload, model, rows, config)
                attempt("predictions", try_predictions(workload, model, rows, config))
                mixes_rows = False
                if "predictions" in self.tried and not self._has_told("predictions"):
                    attempt("predictions", try_scores(workload, model, rows, config))
                if "predictions" in self.tried and not self._has_told("predictions"):
                    attempt("predictions", try_row_alone(workload, model, rows, config))
                    mixes_rows = self._has_told("predictions")
                # Then metrics depend on the batches as the outputs do, which is told already.
                metrics = try_metrics(
                    workload, model, rows, config, compares_batches=not mixes_rows
                )
                attempt("metric", metrics)
                attempt("loss", try_loss(workload, model, rows, config))
                # What no checkpoint has, a served model has not, either: it is said already.
                is_good = not any(one.is_refused for one in self.findings)
                if is_good and "predictions" in self.tried and self._has_time("a served model"):
                    served = self._served_workload()
                    self._try("predictions", try_served(served, workload, model, rows, config))
        finally:
            set_modes(modes)

    def _try(self, name: FindingName, found: Iterable[Finding]) -> bool:
        """Whether it could be tried."""
        try:
            self.findings += found
        except EvertrainError:
            raise
        except Exception as error:
            if name not in _OF_FEW_ROWS:
                raise
            # It may need more rows, or others.
            self.left_out.append(f"{name}: of {NUM_ROWS} rows the workload raises {raised(error)}")
            return False
        if name not in self.tried:
            self.tried.append(name)
        return True

    def _has_told(self, name: FindingName) -> bool:
        return any(one.name == name for one in self.findings)

    def leave_out(self, what: str) -> None:
        """Note what another try might show."""
        self.left_out.append(what)
        self.is_cut_short = True

    def is_of_workers(self, error: Exception) -> bool:
        """Whether workers may not meet the error: they have a process group, and may have GPUs."""
        config = self._config
        is_here = config.ray_address == LOCAL and not torch.cuda.is_available()
        is_here = is_here or self._device.type != "cpu"
        return "process group" in str(error) or (config.gpus_per_worker != 0 and not is_here)

    def _has_time(self, what: str) -> bool:
        is_late = time.monotonic() - self._begin_s > _MOST_S
        if is_late:
            self.leave_out(f"{what}: the rehearsal has taken {_MOST_S:.0f} s already")
        return not is_late


def _validate_first_batch(
    workload: Workload[Any], model: nn.Module, validation_set: Dataset, config: TrainConfig
) -> None:
    """Measure the first batch of a validation, which raises what the run's validation would."""
    num_rows = min(len(validation_set), config.eval_batch_size)
    first = FewSamples(validation_set, np.arange(num_rows))
    alone = config.model_copy(update={"num_shards": 1})
    measure_shard(workload, model, first, alone, 0, device_of(model))


def _too_much(train_set: Dataset) -> str:
    """Why reading samples would take too long, or too much memory; empty: it would not."""
    # The first one may open a file, or a connection.
    sample = fetch(train_set, np.zeros(1, np.int64))
    begin_s = time.monotonic()
    fetch(train_set, np.full(1, len(train_set) - 1, np.int64))
    took_s = time.monotonic() - begin_s
    num_bytes = sum(value.nbytes for value in tree_leaves(sample) if hasattr(value, "nbytes"))
    if num_bytes > _MOST_SAMPLE_BYTES:
        return f"a sample has {num_bytes:,} bytes"
    return f"reading a sample took {took_s:.1f} s" if took_s > _MOST_SAMPLE_S else ""


def _trial(
    new_workload: Callable[[], Workload[Any]],
    config: TrainConfig,
    train_set: Dataset,
    num_shards: int,
    total_steps: int,
    device: torch.device,
) -> Trial:
    """The first samples as they are planned, cut to a few for each shard."""
    accumulation_steps = min(config.accumulation_steps, _MOST_ACCUMULATION)
    batch_size = _SAMPLES_PER_SHARD * num_shards * accumulation_steps
    cut = config.model_copy(
        update={
            "num_workers": 1,
            "num_shards": num_shards,
            "batch_size": batch_size,
            "accumulation_steps": accumulation_steps,
            "epochs": 1,
            "threads_per_worker": 1,
            "gpus_per_worker": 0,
            "data_workers": 0,
            "compile": False,
            "strategy": "ddp",
            "init_from": "",
        }
    )
    return Trial(new_workload, cut, _first(new_workload(), train_set, cut), total_steps, device)


def _whole(trial: Trial, config: TrainConfig, train_set: Dataset) -> Trial:
    """The trial with as many samples in a step as the training has."""
    num_samples = {
        "batch_size": config.batch_size,
        "accumulation_steps": config.accumulation_steps,
    }
    whole = trial.config.model_copy(update=num_samples)
    first = _first(trial.new_workload(), train_set, whole)
    return replace(trial, config=whole, dataset=first)


def _first(workload: Workload[Any], train_set: Dataset, config: TrainConfig) -> Dataset:
    """The first samples of an epoch, enough for all steps of a trial."""
    order = epoch_order(workload, train_set, config.seed, 0)
    return FewSamples(train_set, np.resize(order, config.batch_size * (STEPS + 1)))


def _try_schedule(workload: Workload[Any], model: nn.Module, total_steps: int) -> Iterator[Finding]:
    """Whether the rates are numbers, from the first step to the last."""
    optimizer = workload.optimizer(model)
    schedule = workload.schedule(optimizer, total_steps)
    steps_alone = isinstance(schedule, LRScheduler) and not isinstance(schedule, ReduceLROnPlateau)
    if schedule is None or not steps_alone:
        return
    first = min(total_steps, _MOST_RATES)
    later = {int(s) for s in np.linspace(first, total_steps - 1, _NUM_RATES)}
    for step in (*range(first), *sorted(step for step in later if first <= step < total_steps)):
        if step:
            # One that is no composition says a step's rate from how many came before it.
            schedule.last_epoch = step - 1
            try:
                with warnings.catch_warnings():
                    # torch warns that the optimizer has made no step, which may need gradients.
                    warnings.simplefilter("ignore", UserWarning)
                    schedule.step()
            except Exception as error:  # noqa: BLE001 (of a user's code)
                yield _of_schedule(
                    f"before step {step + 1} of {total_steps} the schedule raises "
                    f"{type(error).__name__}: {error}. schedule() gets total_steps: make it as long"
                )
                return
        for rate in (group["lr"] for group in optimizer.param_groups):
            value = float(rate) if isinstance(rate, (numbers.Real, torch.Tensor)) else math.nan
            if not math.isfinite(value) or value < 0:
                yield _of_schedule(
                    f"the learning rate of step {step + 1} of {total_steps} is {rate}: give "
                    "finite numbers from 0 on"
                )
                return


def _of_schedule(message: str) -> Finding:
    return Finding(name="schedule", is_refused=False, message=message)


@contextmanager
def _as_it_was() -> Iterator[None]:
    """Put the generators, the number of threads and torch's switches back."""
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002 (users draw from it)
    num_threads = torch.get_num_threads()
    is_deterministic = torch.are_deterministic_algorithms_enabled()
    fills = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]  # its stub lacks it
    try:
        yield
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])  # noqa: NPY002 (as above)
        random.setstate(states[2])
        torch.set_num_threads(num_threads)
        set_deterministic(mode=is_deterministic)
        torch.utils.deterministic.fill_uninitialized_memory = fills  # type: ignore[attr-defined]
