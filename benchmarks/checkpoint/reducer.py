"""The fixed-order reducer against the ring of DDP: ResNet-18 at 28 x 28, in windows by turns.

The same processes hold both models; each window is some whole optimizer steps on a batch in
memory. DDP is as its constructor makes it; evertrain's part has the reducer and the buffers'
exchange, as its loop has.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from benchmarks.checkpoint.bench import Bench
from benchmarks.checkpoint.ranks import Ranks

SIZES = {1: 64, 2: 64, 4: 32}
"""Samples of each rank, by the number of ranks."""


def measure(bench: Bench) -> None:
    """The ratio of throughputs at each number of ranks."""
    report = bench.report
    steps, rounds = (1, 2) if bench.is_quick else (3, 10)
    for num_ranks, batch_size in SIZES.items():
        folder = bench.fresh()
        task = {"batch_size": 4 if bench.is_quick else batch_size}
        names = {which: f"reducer, {num_ranks} ranks: {which}" for which in ("ring", "evertrain")}
        with Ranks(folder, "reducer", num_ranks).start(start, task) as ranks:
            for number in range(rounds + 1):
                for which in list(names) if number % 2 else reversed(names):
                    seconds = max(ranks.ask("window", which=which, steps=steps))
                    if number:
                        samples = steps * num_ranks * task["batch_size"]
                        report.add(f"{names[which]}, samples/s", samples / seconds)
            ranks.ask("close")
        ours, ring = (report.median(f"{names[w]}, samples/s") for w in ("evertrain", "ring"))
        report.figure(f"reducer_vs_ring_{num_ranks}", ours / ring)


def start(task: dict[str, Any]) -> Callable[..., Any]:
    """A rank with both models; what carries out its commands."""
    rank = Rank(**task)
    return lambda command, **arguments: getattr(rank, command)(**arguments)


class Rank:
    """One rank's two models on one batch."""

    def __init__(self, batch_size: int) -> None:
        import torch
        import torch.distributed as dist
        from torch.nn.parallel import DistributedDataParallel

        from train_core.rank.distributed.buffers import Buffers
        from train_core.rank.distributed.group import Group
        from train_core.rank.distributed.reducer import Reducer
        from train_core.workloads.resnet import ResNet18

        torch.set_num_threads(1)
        dist.init_process_group("gloo")
        self.dist = dist
        torch.manual_seed(0)
        group = Group.current()
        self.shard = group.rank
        bare = ResNet18(in_channels=1, num_classes=10)
        self.ours = ResNet18(in_channels=1, num_classes=10)
        self.ours.load_state_dict(bare.state_dict())
        self.reducer = Reducer(self.ours, group.world_size, group)
        self.buffers = Buffers(self.ours, 1, group)
        self.ring = DistributedDataParallel(bare)
        self.optimizers = {
            model: torch.optim.AdamW(model.parameters(), fused=True)
            for model in (self.ours, self.ring)
        }
        self.images = torch.randn(batch_size, 1, 28, 28)
        self.labels = torch.randint(10, (batch_size,))
        self.weight = 1 / group.world_size

    def window(self, which: str, steps: int) -> float:
        """Seconds of some steps."""
        step = self._ring_step if which == "ring" else self._our_step
        self.dist.barrier()
        begin = time.perf_counter()
        for _ in range(steps):
            step()
        return time.perf_counter() - begin

    def close(self) -> None:
        """End the group and the reducer's thread."""
        self.reducer.close()
        self.dist.destroy_process_group()

    def _ring_step(self) -> None:
        optimizer = self.optimizers[self.ring]
        optimizer.zero_grad()
        self._loss(self.ring).backward()
        optimizer.step()

    def _our_step(self) -> None:
        self.reducer.begin_shard(self.shard)
        self.buffers.begin_shard(is_first_here=True)
        loss = self._loss(self.ours) * self.weight
        self.reducer.expect_last_backward()
        loss.backward()
        self.reducer.end_shard()
        self.buffers.end_shard(self.shard)
        self.buffers.send()
        self.reducer.finish()
        self.buffers.finish()
        self.optimizers[self.ours].step()

    def _loss(self, model: Any) -> Any:
        from torch.nn.functional import cross_entropy

        return cross_entropy(model(self.images), self.labels)
