"""The proof that a workload is trained and resumed exactly: it is trained four times.

Once undisturbed, once killed and resumed, once with a rank that is killed while the other processes
train on, and once in plain PyTorch; all is compared to the bit. The ranks are real processes with
gloo, without Ray, and the kill is a SIGKILL. They run `train_core.tools.standalone` under torchrun,
and `train_core.tools.killed_in_place`. The comparison, and plain PyTorch, run in this process,
which imports torch for them.
"""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Literal

from pydantic import Field

from train_core.client.diff import compare_runs
from train_core.config import TrainConfig, loopback_interface
from train_core.differences import ResumeVerdict, StepDigests, first_difference, read_digests
from train_core.entry_points import STANDALONE_RANK
from train_core.errors import ConfigError, StageError
from train_core.inside import environment_of, refuse_inside, users_code_in_command
from train_core.policy.metric_names import VALIDATION_LOSS
from train_core.quick_imports import garbage_collection_paused
from train_core.requests import StandaloneTask, died_mark, digests_files, error_file
from train_core.results import Result
from train_core.storage.addresses import absolute
from train_core.storage.objects.store import Store
from train_core.storage.run_folder import RunFolder

Phase = Literal["undisturbed", "killed", "resumed", "in place", "plain"]
OnStep = Callable[[Phase, int], None]
"""Called now and then with the phase that runs and the steps that its run has done."""

# Parameters that the proof itself decides, and those without a meaning in it.
_DECIDED = {
    *("workload", "settings", "batch_size", "epochs", "max_steps", "max_duration_s"),
    *("checkpoint_every_epochs", "checkpoint_every_steps", "checkpoint_every_s"),
    *(
        "keep_last",
        "keep_best",
        "checkpoint_backpressure",
        "num_workers",
        "num_shards",
        "gpus_per_worker",
        "cpus_per_worker",
    ),
    *("ray_address", "runtime_env", "placement_strategy", "spares", "strict"),
    *("init_from", "init_from_optimizer", "init_from_allow"),
}
_POLL_S = 0.25
_END_GRACE_S = 30.0


class VerifyResumeRequest(Result):
    """The request of a proof."""

    workload: str
    settings: dict[str, Any] = {}
    training: dict[str, Any] = {}
    """Further parameters of the training."""
    steps: int = Field(default=30, ge=8)
    """Optimizer steps; the training split is cut so that they cross an epoch's end."""
    batch_size: int = Field(default=32, ge=1)
    workers: int = Field(default=2, ge=1)
    workers_after: int = Field(default=1, ge=1)
    kill_after: int = Field(default=0, ge=0)
    """The step after which rank 0 is killed; 0: after three fifths of them."""
    storage: str
    """Where the two runs are written: an empty place."""

    @property
    def checkpoint_every(self) -> int:
        """Steps from a checkpoint to the next."""
        return self.steps // 4

    @property
    def killed_after(self) -> int:
        """Steps done when the run is killed. Raises ConfigError if a kill there proves nothing."""
        after = self.kill_after or self.steps * 3 // 5
        if not self.checkpoint_every <= after < self.steps:
            raise ConfigError(
                f"kill_after is {after}: a run that resumes was killed after its first checkpoint, "
                f"of step {self.checkpoint_every}, and before its end, step {self.steps}"
            )
        return after

    def config(self) -> TrainConfig:
        """The training's configuration. Raises ConfigError for what the proof decides itself."""
        if decided := sorted(self.training.keys() & _DECIDED):
            raise ConfigError(
                f"{', '.join(decided)} cannot be given as a parameter of the training: "
                "verify-resume decides it, or has an argument for it"
            )
        asked = {"monitor": VALIDATION_LOSS, "monitor_order": "min"} | self.training
        return TrainConfig.of(
            **asked,
            workload=self.workload,
            settings=self.settings,
            batch_size=self.batch_size,
            epochs=self.steps,
            max_steps=self.steps,
            checkpoint_every_epochs=0,
            checkpoint_every_steps=self.checkpoint_every,
            checkpoint_backpressure="wait",
            keep_last=self.steps,
            num_shards=max(self.workers, self.workers_after),
            gpus_per_worker=0,
        )


def verify_resume(
    request: VerifyResumeRequest, folder: Path, on_step: OnStep | None = None
) -> ResumeVerdict:
    """Train undisturbed; train, kill and resume; kill one rank only; train plainly; compare.

    `folder` gets the ranks' tasks and logs. Raises ConfigError for a request that cannot be carried
    out, and StageError, with the end of its log, if a training failed by itself.
    """
    refuse_inside()
    config, killed_after = request.config(), request.killed_after
    storage = request.storage
    undisturbed, resumed = RunFolder(storage, "undisturbed"), RunFolder(storage, "resumed")
    task = StandaloneTask(
        storage=storage,
        run=undisturbed.name,
        config=config.model_copy(update={"num_workers": request.workers}),
        # Two epochs, the last batch of each of them smaller.
        max_samples=request.steps // 2 * request.batch_size - request.batch_size // 2,
    )
    _train("undisturbed", task, folder, on_step)
    # What is fitted need not come out alike twice: it is recorded once.
    fitted_once = {"run": resumed.name, "fitted_of": undisturbed.name}
    task = task.model_copy(update={**fitted_once, "kill_after": killed_after})
    _train("killed", task, folder, on_step)
    newest = resumed.newest()
    assert newest is not None, "the run is killed after its first checkpoint"
    after = config.model_copy(update={"num_workers": request.workers_after})
    task = task.model_copy(update={"config": after, "kill_after": None})
    _train("resumed", task, folder, on_step)
    comparison = compare_runs(undisturbed, resumed)
    in_place = fitted_once | {"run": "in-place", "kill_after": killed_after}
    first = task.model_copy(
        update={**in_place, "config": config.model_copy(update={"num_workers": request.workers})}
    )
    not_in_place = _train_in_place(first, folder, on_step)
    not_plain = _train_plainly(task, folder, on_step)
    steps = _read_digests(folder, "undisturbed")
    of_resumed = _read_digests(folder, "killed", "resumed")
    of_in_place = steps if not_in_place else _read_digests(folder, "in-place")
    of_plain = steps if not_plain else _read_digests(folder, "plain")
    return ResumeVerdict(
        identical=comparison.is_same,
        workload=request.workload,
        workers=request.workers,
        workers_after=request.workers_after,
        killed_after=killed_after,
        resumed_after=newest.step,
        comparison=comparison,
        resumed_differs=first_difference(steps, of_resumed),
        in_place=None if not_in_place else compare_runs(undisturbed, RunFolder(storage, first.run)),
        in_place_differs=first_difference(steps, of_in_place),
        not_in_place=not_in_place,
        plain_differs=first_difference(steps, of_plain),
        not_plain=not_plain,
    )


def _read_digests(folder: Path, *phases: str) -> StepDigests:
    files = [digests_files(folder / f"{phase}.json") for phase in phases]
    return read_digests(*itertools.chain.from_iterable(files))


def _train_in_place(task: StandaloneTask, folder: Path, on_step: OnStep | None) -> str:
    """Train with a rank that is killed; why it could not be done, else empty."""
    if task.config.num_workers == 1:
        return "there is one worker, and nobody survives it"
    if task.config.strategy == "fsdp":
        return "with strategy fsdp nobody else has what a dead rank had"
    task_file, run = folder / f"{task.run}.json", RunFolder(task.storage, task.run)

    def show() -> None:
        if on_step:
            on_step("in place", int((run.live() or {}).get("step", 0)))

    with users_code_in_command("verify-resume", task.config.workload):
        with garbage_collection_paused():
            from train_core.tools.killed_in_place import train_in_place
        try:
            train_in_place(task, task_file, show)
        except StageError:
            raise _failure("in place", task_file) from None
    if on_step:
        on_step("in place", task.config.max_steps)
    return ""


def _train_plainly(task: StandaloneTask, folder: Path, on_step: OnStep | None) -> str:
    """Train in plain PyTorch; why it could not be done, else empty."""
    if on_step:
        on_step("plain", 0)
    task_file = folder / "plain.json"
    try:
        with users_code_in_command("verify-resume", task.config.workload):
            with garbage_collection_paused():
                from train_core.tools.standalone import train_plainly
            train_plainly(task, task_file)
    except ConfigError as error:
        return str(error)
    if on_step:
        on_step("plain", task.config.max_steps)
    return ""


@contextmanager
def temporary_runs(storage: str = "", *, keep: bool = False) -> Iterator[tuple[Path, str]]:
    """A new local folder for the logs, and the address for both runs, below `storage` if given.

    Both are deleted at the end of the block, unless `keep` is set. The local folder stays, too, if
    a training failed by itself: its log is in there.
    """
    folder = Path(tempfile.mkdtemp(prefix="evertrain-proof-"))
    runs = f"{absolute(storage)}/{folder.name}" if storage else str(folder)
    is_over = False
    try:
        yield folder, runs
        is_over = True
    finally:
        if not keep and (is_over or not any(folder.glob("*.log"))):
            shutil.rmtree(folder)
        if not keep and runs != str(folder):
            Store(runs).delete("")


def _train(phase: Phase, task: StandaloneTask, folder: Path, on_step: OnStep | None) -> None:
    """Run the ranks to their end, or to the kill."""
    task_file = folder / f"{phase}.json"
    task_file.write_text(task.model_dump_json(indent=1))
    run = RunFolder(task.storage, task.run)
    with (folder / f"{phase}.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", str(task.config.num_workers)),
                *("--log-dir", str(folder)),
                *("-m", STANDALONE_RANK, str(task_file)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env={
                "GLOO_SOCKET_IFNAME": loopback_interface(),
                **environment_of("worker", OMP_NUM_THREADS=str(task.config.threads_per_worker)),
            },
        )
    try:
        while process.poll() is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_POLL_S)
            if on_step:
                on_step(phase, int((run.live() or {}).get("step", 0)))
    finally:
        _end(process)
    has_died = died_mark(task_file).exists()
    if not (has_died if task.kill_after is not None else process.returncode == 0):
        raise _failure(phase, task_file)
    if on_step:
        on_step(phase, task.config.max_steps if task.kill_after is None else task.kill_after)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End torchrun, which ends its ranks, if it still runs."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(_END_GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _failure(phase: Phase, task_file: Path) -> Exception:
    """The error of the first failing rank, else the end of the log."""
    log = task_file.with_suffix(".log")
    try:
        report: dict[str, str] = json.loads(error_file(task_file).read_text())
    except FileNotFoundError:
        lines = log.read_text(errors="replace").strip().splitlines() or ["the log is empty"]
        return StageError(phase, f"{lines[-1]} (see {log})")
    if report["kind"] == "config":
        return ConfigError(report["message"])
    return StageError(phase, f"{report['message']} (the traceback is in {log})")
