"""What a checkpoint costs a training on one GPU, beside a bare copy and torch's own ways to save.

One training, in windows that begin and end with an idle device. In each round there is a window
without a checkpoint and one with evertrain's, and in some rounds one with each peer's; the order
rotates. What a checkpoint costs is the window with it less the window without: "lost". Whatever is
still being written at the end of a window is waited for outside of it. The slow-down is that of
longer windows.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch.distributed as dist

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.training import Training
from benchmarks.peers.torch_saving import (
    DCP,
    DCP_PINNED,
    TORCH_SAVE,
    DcpAsync,
    TorchSave,
    join_alone,
)
from benchmarks.report import Report
from train_core.config.worker_options import loopback_interface

KEYS = (
    "gpu_stall_vs_copy",
    "gpu_slowdown_pct",
    "torch_save_vs_ours",
    "dcp_async_vs_ours",
)
ALONE, OURS = "no checkpoint", "evertrain"
COPY = "bare copy of the state, ms"
COMMIT = "evertrain: commit after the loop went on, s"
SLOWER = "slow-down by one checkpoint in a window, %"
CHECKPOINTS_AT_ONCE = 8
"""Room for so many: those that are kept, those being written, and the peers'."""
T_95 = (12.71, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
"""Student's t for 95%, both sides, by degrees of freedom from 1."""


@dataclass(frozen=True)
class Sizes:
    """How much is trained, saved and measured."""

    settings: dict[str, Any] = field(default_factory=dict)
    """The decoder's; by default it is the one of 355 million parameters."""
    batch_size: int = 8
    window_s: float = 5
    """Long enough for a checkpoint to be written meanwhile."""
    rounds: int = 6
    peers_every: int = 3
    """The peers have a turn, too, in every so many rounds."""
    copies: int = 3
    """In a round."""
    long_window_s: float = 30
    pairs: int = 6
    """At most; as many as there is time for."""
    min_steps: int = 5


SMALL = Sizes(
    settings={"num_blocks": 2, "width": 64, "num_heads": 2, "context": 32, "vocabulary": 512},
    batch_size=2,
    window_s=0.5,
    rounds=1,
    long_window_s=1,
    pairs=2,
)


class Saving(Protocol):
    """A way to save."""

    name: str

    def save(self, step: int) -> None:
        """Save, or begin to; the loop waits for this call."""

    def wait(self) -> object:
        """Wait until the checkpoint is written."""

    def close(self) -> None:
        """Delete what it has written."""


def measure(bench: Bench) -> None:
    """The cost of a checkpoint beside its peers', then the slow-down."""
    sizes = SMALL if bench.is_quick else Sizes()
    report = bench.report
    # Room is asked for before the state exists: 12 bytes a parameter.
    folder = bench.storage_folder(0 if bench.is_quick else CHECKPOINTS_AT_ONCE * 355 * 12 * 10**6)
    report.note(f"saving: checkpoints are written to {folder.parent}")
    training = Training(folder / "ours", sizes.settings, sizes.batch_size, bench.device)
    peers: list[Saving] = []
    try:
        training.window(sizes.min_steps)
        state_bytes = sum(tensor.nbytes for tensor in training.live())
        report.add("saving: state, MB", state_bytes / 1e6)
        peers = warmed_up_peers(bench, training, folder)
        steps = calibrated(training, sizes, report)
        for number in range(sizes.rounds):
            has_peers = number % sizes.peers_every == 0
            if number >= 2 and not bench.has_time((2 + 3 * has_peers) * 1.5 * sizes.window_s):
                report.note(f"saving: {number} rounds, for want of time")
                break
            one_round(report, training, peers if has_peers else [], steps(sizes.window_s), number)
            report.add(COPY, *(training.copy_s() * 1e3 for _ in range(sizes.copies)))
        figures(report, peers)
        for peer in peers:
            peer.close()
        peers = []
        slow_down(bench, training, sizes, steps(sizes.long_window_s))
    finally:
        for peer in peers:
            peer.close()
        training.close()
        if dist.is_initialized():
            dist.destroy_process_group()


def warmed_up_peers(bench: Bench, training: Training, folder: Path) -> list[Saving]:
    """The peers that can save here; each saves once, as evertrain does, to make its buffers."""
    report = bench.report
    training.window(1, training.save)
    report.add("evertrain: commit of the first checkpoint, s", training.wait())
    training.copy_s()
    try:
        join_alone(bench.device, loopback_interface())
    except Exception as error:  # noqa: BLE001 (whatever keeps it from joining, DCP can do without)
        report.note(f"saving: DCP has no process group: {type(error).__name__}: {error}")
    model, optimizer = training.model, training.optimizer
    made: list[Saving] = [
        TorchSave(model, optimizer, folder / "torch-save"),
        DcpAsync(model, optimizer, folder / "dcp"),
    ]
    if bench.on_gpu:
        made.append(DcpAsync(model, optimizer, folder / "dcp-pinned", pinned=True))
    found = []
    for peer in made:
        try:
            training.window(1, save_of(peer, training))
            peer.wait()
        except Exception as error:  # noqa: BLE001 (whatever keeps it from saving, the others can)
            report.note(f"{peer.name} does not save here: {type(error).__name__}: {error}")
        else:
            found.append(peer)
    return found


def save_of(peer: Saving, training: Training) -> Callable[[], None]:
    """What saves the training as the peer does."""
    return lambda: peer.save(training.step)


def calibrated(training: Training, sizes: Sizes, report: Report) -> Callable[[float], int]:
    """How many steps a window of so many seconds has."""
    step_s = training.window(2 * sizes.min_steps).seconds / (2 * sizes.min_steps)
    report.add("saving: a step, ms", step_s * 1e3)
    return lambda seconds: max(sizes.min_steps, round(seconds / step_s))


def one_round(
    report: Report, training: Training, peers: list[Saving], steps: int, number: int
) -> None:
    """A window of each kind; the time that each checkpoint cost goes into the report."""
    saves: dict[str, Callable[[], object] | None] = {ALONE: None, OURS: training.save}
    waits: dict[str, Callable[[], object]] = {OURS: lambda: report.add(COMMIT, training.wait())}
    for peer in peers:
        saves[peer.name] = save_of(peer, training)
        waits[peer.name] = peer.wait
    names = list(saves)
    shift = number % len(names)
    windows = {}
    for name in names[shift:] + names[:shift]:
        windows[name] = training.window(steps, saves[name])
        if name in waits:
            waits[name]()
    alone_s = windows.pop(ALONE).seconds
    report.add("saving: a window without a checkpoint, s", alone_s)
    for name, window in windows.items():
        report.add(lost(name), (window.seconds - alone_s) * 1e3)
        report.add(f"{name}: the call, ms", window.blocked_s * 1e3)


def lost(name: str) -> str:
    """The series of what a checkpoint costs the loop."""
    return f"{name}: lost by a checkpoint, ms"


def figures(report: Report, peers: list[Saving]) -> None:
    """The ratios of medians."""
    ours_ms, copy_ms = report.median(lost(OURS)), report.median(COPY)
    report.figure("gpu_stall_vs_copy", ours_ms / copy_ms)
    report.figure("gpu_call_vs_copy", report.median(f"{OURS}: the call, ms") / copy_ms)
    if ours_ms <= 0:
        report.note("saving: evertrain's checkpoint cost nothing that could be measured: no ratios")
        return
    ratios = {peer.name: report.median(lost(peer.name)) / ours_ms for peer in peers}
    if TORCH_SAVE in ratios:
        report.figure("torch_save_vs_ours", ratios[TORCH_SAVE])
    if DCP in ratios:
        report.figure("dcp_async_plain_vs_ours", ratios[DCP])
        # With pinned memory where there is a GPU, as the tutorial ends.
        report.figure("dcp_async_vs_ours", ratios.get(DCP_PINNED, ratios[DCP]))


def slow_down(bench: Bench, training: Training, sizes: Sizes, steps: int) -> None:
    """Pairs of long windows, one of each pair with a checkpoint, in alternating order."""
    report = bench.report
    for pair in range(sizes.pairs):
        # A checkpoint that a window leaves behind takes some seconds more.
        if not bench.has_time(2.2 * sizes.long_window_s):
            report.note(f"saving: {pair} pairs of long windows, for want of time")
            break
        seconds = {}
        for is_saved in (True, False) if pair % 2 else (False, True):
            seconds[is_saved] = training.window(steps, training.save if is_saved else None).seconds
            if is_saved:
                report.add(COMMIT, training.wait())
        report.add(SLOWER, 100 * (seconds[True] / seconds[False] - 1))
    slower = report.series.get(SLOWER)
    if not slower:
        return
    mean = statistics.fmean(slower)
    report.figure("gpu_slowdown_pct", mean)
    if len(slower) > 1:
        half = T_95[len(slower) - 2] * statistics.stdev(slower) / math.sqrt(len(slower))
        report.figure("gpu_slowdown_pct_ci95", [mean - half, mean + half])
