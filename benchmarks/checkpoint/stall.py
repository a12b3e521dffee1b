"""How long a checkpoint blocks the loop, and how much time it costs in all.

Two workers, parameters and Adam's moments: (a) `torch.save` + `report` at Ray's defaults, (b) Ray's
ASYNC mode, (c) evertrain, (d) copying the state into buffers that exist, on both ranks at the same
time, in evertrain's own processes: each rank the whole state, or its share of it. All four live
side by side and take turns. A rank is as slow as the slowest.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.checkpoint import training
from benchmarks.checkpoint.bench import ROOT, Bench
from benchmarks.checkpoint.ranks import Ranks
from benchmarks.services import ray_cluster

SIZES_MB = (14, 140, 560)
PROMISED_MB = 140
CADENCE_S = 0.5
"""Of training between two checkpoints."""


@dataclass
class Contender:
    """A group of ranks and how many of its steps make up a cadence."""

    name: str
    ranks: Ranks
    every: int = 1

    def warm_up(self) -> None:
        """Take the first checkpoint and see how long a step takes."""
        self.ranks.ask("turn", steps=2, mode="save", every=1)
        slowest = max(answer["seconds"] for answer in self.ranks.ask("turn", steps=5))
        self.every = max(1, round(CADENCE_S / (slowest / 5)))

    def turn(self, mode: str, count: int, tail: int) -> tuple[list[float], float]:
        """Each checkpoint's blocked seconds, and those of the turn; `tail` cadences follow."""
        # What others wrote is on the disk, and not in this one's way.
        os.sync()
        steps = self.every * (count + tail)
        answers = self.ranks.ask("turn", steps=steps, mode=mode, every=self.every)
        taken = zip(*(answer["blocked"] for answer in answers), strict=True)
        return [max(of_ranks) for of_ranks in taken], max(a["seconds"] for a in answers)


def measure(bench: Bench) -> None:
    """All sizes; the promised one also with a core to spare."""
    folder = bench.fresh()
    sizes = (1, 2, 3) if bench.is_quick else SIZES_MB
    with (
        ray_cluster(folder, "--num-cpus=6", "--object-store-memory=100000000") as address,
        ray_training(folder, address, "sync") as stock,
        ray_training(folder, address, "async") as ray_async,
    ):
        for size, promised in zip(sizes, SIZES_MB, strict=True):
            for ranks in (stock, ray_async):
                ranks.ask("setup", state_mb=size)
            task = {"storage": str(folder / f"ours-{size}"), "settings": {"state_mb": size}}
            ours = Ranks(folder, f"ours-{size}", 2)
            with ours.start(training.start, task):
                contenders = [
                    Contender("(a) torch.save + report", stock),
                    Contender("(b) Ray ASYNC", ray_async),
                    Contender("(c) evertrain", ours),
                ]
                for contender in contenders:
                    contender.warm_up()
                rounds = 1 if bench.is_quick else {14: 2, 140: 3, 560: 2}[promised]
                for _ in range(rounds):
                    one_round(bench, contenders, promised, "all busy")
                if promised == PROMISED_MB:
                    with pinned(bench, contenders):
                        one_round(bench, contenders, promised, "a core to spare")
                ours.ask("close")
            figures(bench, promised)


def one_round(bench: Bench, contenders: list[Contender], size: int, load: str) -> None:
    """Each contender's turns, one after the other: with checkpoints and without."""
    stock, ray_async, ours = contenders
    count, tail = (2, 1) if bench.is_quick else (4, 1 + size // 140)
    for peer in (stock, ray_async):
        blocked = with_and_without(bench, peer, size, load, count, tail)
        key = f"{size} MB, {load}: {peer.name}"
        # The first of a turn meets a controller that has done its work.
        bench.report.add(f"{key}, rested, ms", blocked[0] * 1e3)
        bench.report.add(f"{key}, ms", *(s * 1e3 for s in blocked[1:]))
        blocked = with_and_without(bench, ours, size, load, count, tail)
        bench.report.add(f"{size} MB, {load}: {ours.name}, ms", *(s * 1e3 for s in blocked))
        for mode, name in (("copy", "(d) copy"), ("share", "(d/2) copy of a rank's share")):
            copied, _ = ours.turn(mode, count, 0)
            bench.report.add(f"{size} MB, {load}: {name}, ms", *(s * 1e3 for s in copied))


def with_and_without(
    bench: Bench, contender: Contender, size: int, load: str, count: int, tail: int
) -> list[float]:
    """Seconds blocked by each checkpoint of a turn; the time lost goes into the report."""
    blocked, with_them = contender.turn("save", count, tail)
    _, without = contender.turn("train", count, tail)
    lost = (with_them - without) / len(blocked)
    bench.report.add(f"{size} MB, {load}: {contender.name}, lost in all, ms", lost * 1e3)
    return blocked


def figures(bench: Bench, size: int) -> None:
    """The ratios of one size."""
    report, prefix = bench.report, f"{size} MB, all busy:"
    ours, copy = f"{prefix} (c) evertrain, ms", f"{prefix} (d) copy, ms"
    share = f"{prefix} (d/2) copy of a rank's share, ms"
    stock, ray_async = f"{prefix} (a) torch.save + report", f"{prefix} (b) Ray ASYNC, ms"
    tag = "" if size == PROMISED_MB else f"_{size}"
    report.figure(f"stall_vs_copy_p50{tag}", report.median(ours) / report.median(copy))
    report.figure(f"stall_vs_copy_p95{tag}", report.p95(ours) / report.p95(copy))
    report.figure(f"stall_vs_share_p50{tag}", report.median(ours) / report.median(share))
    report.figure(f"stock_vs_ours{tag}", report.median(f"{stock}, ms") / report.median(ours))
    rested = report.median(f"{stock}, rested, ms") / report.median(ours)
    report.figure(f"stock_rested_vs_ours{tag}", rested)
    report.figure(f"ray_async_vs_ours{tag}", report.median(ray_async) / report.median(ours))
    if size == min(SIZES_MB):
        report.figure("small_over_copy_ms", report.median(ours) - report.median(copy))


@contextlib.contextmanager
def pinned(bench: Bench, contenders: list[Contender]) -> Iterator[None]:
    """Both workers compute on one core; what works behind their backs has the other one too."""
    for contender in contenders:
        contender.ranks.ask("pin", core=bench.cores[0])
    for contender in contenders:
        contender.warm_up()
    yield
    for contender in contenders:
        contender.ranks.ask("release", cores=bench.cores)


@contextlib.contextmanager
def ray_training(folder: Path, address: str, mode: str) -> Iterator[Ranks]:
    """The ranks of a training on Ray."""
    # A cluster asks for its token, and a client sends it only if told to.
    ray = {"RAY_ADDRESS": address, "RAY_AUTH_MODE": "token", "PYTHONPATH": str(ROOT)}
    ranks = Ranks(folder, mode, 2)
    task = {"mode": mode, "storage": str(folder / "ray-storage"), "port": ranks.port}
    with ranks.log.open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.peers.ray_saving", json.dumps(task)],
            env={**os.environ, **ray},
            stdout=log,
            stderr=log,
        )
    try:
        with ranks.accept():
            yield ranks
        process.wait(60)
    finally:
        process.kill()
        process.wait()
