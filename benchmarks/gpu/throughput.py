"""Images/s of ResNet-18 on MNIST in evertrain's loop on one GPU, beside plain loops of torch.

Every contender is a process of its own, which stays alive: they train by turns, and the order
rotates. Each turn begins with steps that do not count. Nobody validates or saves.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from benchmarks.checkpoint.ranks import Ranks
from benchmarks.gpu.bench import ROOT, Bench
from benchmarks.peers.torch_mnist import HAS_TORCHVISION, ONE_BATCH, SAME_MODEL, TUNED, TUTORIAL
from benchmarks.pipeline import MNIST_FILES
from benchmarks.report import Report

KEYS = ("gpu_vs_tuned", "gpu_vs_compute_bound", "gpu_vs_tutorial")
NUM_TRAINED = 55_000
"""Images of an epoch of evertrain's, which holds out 5,000; a turn is no longer than an epoch."""
ROUNDS, STEPS, WARM_UP = 3, 400, 20
MAX_WORKERS = 8
PEERS, EVERTRAIN = "benchmarks.peers.torch_mnist", "benchmarks.gpu.images"
A_TUTORIAL = "(a) the tutorial's loop"
B_TUNED = "(b) the same with torch's advice"
B_SAME_MODEL = "(b') (b) with evertrain's model and optimizer"
C_DEFAULTS = "(c) evertrain at its defaults"
C_TUNED = "(c') evertrain with (b)'s options"
C_EXACT = "(c'') (c') with deterministic algorithms"
D_BOUND = "(d) one batch on the device"
COMPILES = "import torch; torch.compile(lambda x: x * 2 + 1)(torch.ones(8, device={device!r}))"


class Program(subprocess.Popen[bytes]):
    """A process that `Ranks` watches and ends as it does those of its own."""

    @property
    def exitcode(self) -> int | None:
        """None while it runs."""
        return self.poll()

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(timeout)

    def close(self) -> None:
        """Nothing is left to free."""


def measure(bench: Bench) -> None:
    """All contenders by turns, and the ratios of their medians."""
    report = bench.report
    rounds, steps, warm_up = (1, 3, 2) if bench.is_quick else (ROUNDS, STEPS, WARM_UP)
    steps = max(1, min(steps, NUM_TRAINED // bench.batch_size - warm_up))
    compiles = not bench.is_quick and can_compile(bench)
    if not HAS_TORCHVISION:
        report.note("throughput: torchvision is not installed; its data set is written out here")
    with contextlib.ExitStack() as stack:
        started = {
            name: stack.enter_context(start(bench, number, module, task))
            for number, (name, module, task) in enumerate(tasks(bench, compiles=compiles))
            if not bench.contenders or name[1 : name.index(")")] in bench.contenders
        }
        contenders = warmed_up(started, report, warm_up)
        round_s = 0.0
        for number in range(rounds):
            begin = time.perf_counter()
            if number and not bench.has_time(round_s):
                report.note(f"throughput: {number} rounds, for want of time")
                break
            shift = number % max(1, len(contenders))
            names = list(contenders)
            for name in names[shift:] + names[:shift]:
                (found,) = contenders[name].ask("turn", steps=steps, warm_up=warm_up)
                report.add(rate(name), found)
            round_s = time.perf_counter() - begin
    ratios = {
        "gpu_vs_tuned": (C_TUNED, B_TUNED),
        "gpu_vs_tuned_same_model": (C_TUNED, B_SAME_MODEL),
        "gpu_vs_compute_bound": (C_TUNED, D_BOUND),
        "gpu_vs_tutorial": (C_DEFAULTS, A_TUTORIAL),
        "gpu_defaults_vs_tuned": (C_DEFAULTS, B_TUNED),
        "gpu_exact_vs_tuned": (C_EXACT, B_TUNED),
    }
    for key, (ours, other) in ratios.items():
        if {ours, other} <= contenders.keys():
            report.figure(key, report.median(rate(ours)) / report.median(rate(other)))


def rate(name: str) -> str:
    """The series of a contender."""
    return f"{name}, images/s"


def warmed_up(started: dict[str, Ranks], report: Report, warm_up: int) -> dict[str, Ranks]:
    """The contenders that can train here, after their first steps, one after the other.

    Kernels are compiled and chosen in these steps, undisturbed by the other contenders.
    """
    found = {}
    for name, ranks in started.items():
        try:
            ranks.accept().ask("turn", steps=1, warm_up=warm_up)
        except (RuntimeError, OSError) as error:
            report.note(f"throughput: {name} does not run here: {error}")
        else:
            found[name] = ranks
    return found


def start(bench: Bench, number: int, module: str, task: dict[str, Any]) -> Ranks:
    """The process of a contender, which gets ready while others are asked."""
    ranks = Ranks(bench.scratch, f"contender-{number}", 1)
    told = {"port": ranks.port, "task": task}
    environment = {**os.environ, "PYTHONPATH": _python_path()}
    with ranks.log.open("wb") as log:
        command = [sys.executable, "-m", module, json.dumps(told)]
        ranks.processes.append(Program(command, env=environment, stdout=log, stderr=log))
    return ranks


def tasks(bench: Bench, *, compiles: bool) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Each contender's name, program and task."""
    workers = max(1, min(MAX_WORKERS, len(os.sched_getaffinity(0)) - 1))
    ours_workers = workers if bench.data_workers is None else bench.data_workers
    compiled = "on, but for (a) and (c)" if compiles else "off"
    bench.report.note(
        f"throughput: batches of {bench.batch_size}; {workers} data workers in (b), {ours_workers}"
        f" in (c') and (c''); torch.compile is {compiled}"
    )
    shared = {
        "device": str(bench.device),
        "batch_size": bench.batch_size,
        "idx_folder": str(Path(bench.data).resolve()),
    }
    of_peer = {**shared, "root": torchvision_root(bench), "workers": workers, "compiles": compiles}
    as_tuned = {
        "precision": "bf16",
        "channels_last": True,
        "compile": compiles,
        "data_workers": ours_workers,
    }
    ours = {C_DEFAULTS: {}, C_TUNED: {**as_tuned, "deterministic": False}}
    if bench.on_gpu:
        # A CPU's algorithms are deterministic anyway.
        ours[C_EXACT] = as_tuned
    yield A_TUTORIAL, PEERS, {**of_peer, "kind": TUTORIAL}
    yield B_TUNED, PEERS, {**of_peer, "kind": TUNED}
    yield B_SAME_MODEL, PEERS, {**of_peer, "kind": SAME_MODEL}
    for number, (name, options) in enumerate(ours.items()):
        storage = str(bench.scratch / f"runs-{number}")
        yield name, EVERTRAIN, {**shared, "storage": storage, "options": options}
    yield D_BOUND, PEERS, {**of_peer, "kind": ONE_BATCH}


def torchvision_root(bench: Bench) -> str:
    """A folder with the IDX files, unpacked, where torchvision looks for them."""
    root = bench.scratch / "torchvision"
    raw = root / "MNIST/raw"
    raw.mkdir(parents=True)
    for name in MNIST_FILES if HAS_TORCHVISION else ():
        plain = Path(bench.data, name).resolve()
        if plain.exists():
            (raw / name).symlink_to(plain)
            continue
        with gzip.open(f"{plain}.gz") as packed, (raw / name).open("wb") as unpacked:
            shutil.copyfileobj(packed, unpacked)
    return str(root)


def can_compile(bench: Bench) -> bool:
    """Whether torch.compile works here; on a GPU it needs a C compiler and Python's headers."""
    program = COMPILES.format(device=str(bench.device))
    tried = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=300
    )
    if tried.returncode:
        last = (tried.stderr.strip().splitlines() or ["it was killed"])[-1]
        bench.report.note(f"throughput: torch.compile does not work here: {last}")
    return tried.returncode == 0


def _python_path() -> str:
    """This program's, with the repository first."""
    given = os.environ.get("PYTHONPATH")
    return f"{ROOT}{os.pathsep}{given}" if given else str(ROOT)
