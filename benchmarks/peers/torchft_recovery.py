"""Ray Train with torchft: replica groups that go on without one that died, until it is back.

    python -m benchmarks.peers.torchft_recovery --kills 5

As Ray's example of `TorchftConfig` writes it, on the model of the recovery benchmark. It runs
twice: undisturbed, and with kills. torchft is no dependency: install torchft 0.2.0 first. The last
line is JSON: the seconds, the samples that the run with kills has not trained on, and whether both
ended with the same weights.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import tempfile
import threading
from datetime import timedelta
from pathlib import Path
from typing import Any

import ray
import ray.train
import torch
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer
from ray.train.v2.torch.torchft_config import TorchftConfig

from benchmarks.checkpoint.workload import Blocks, BlocksSettings
from benchmarks.recovery.notes import NUM_RANKS, Notes
from benchmarks.recovery.workload import note_step

STATE_MB, BATCH_SIZE, NUM_ROWS = 14.0, 64, 4096


def train_func(task: dict[str, Any]) -> None:
    """Train so many steps; each worker is a replica group of its own."""
    from torchft import (
        DistributedDataParallel,
        DistributedSampler,
        Manager,
        Optimizer,
        ProcessGroupGloo,
    )
    from torchft.checkpointing.pg_transport import PGTransport

    rank = ray.train.get_context().get_world_rank()
    torch.manual_seed(0)
    workload = Blocks(BlocksSettings(state_mb=STATE_MB))
    module = workload.model()
    own = workload.optimizer(module)
    group = ProcessGroupGloo(timeout=timedelta(seconds=30))
    manager = Manager(
        pg=group,
        min_replica_size=1,
        load_state_dict=lambda state: (
            module.load_state_dict(state["model"]),
            own.load_state_dict(state["optim"]),
        ),
        state_dict=lambda: {"model": module.state_dict(), "optim": own.state_dict()},
        world_size=1,
        rank=0,
        replica_id=f"train_ddp_{rank}",
        timeout=timedelta(seconds=60),
        checkpoint_transport=PGTransport(
            group, timeout=timedelta(seconds=30), device=torch.device("cpu")
        ),
    )
    model, optimizer = DistributedDataParallel(manager, module), Optimizer(manager, own)
    rows = torch.randn(NUM_ROWS, workload.width, generator=torch.Generator().manual_seed(1))
    sampler = DistributedSampler(
        torch.utils.data.TensorDataset(rows),
        replica_rank=rank,
        num_replica_groups=NUM_RANKS,
        group_rank=0,
        num_replicas=1,
        shuffle=False,
    )
    loader = torch.utils.data.DataLoader(
        sampler.dataset, batch_size=BATCH_SIZE // NUM_RANKS, sampler=sampler
    )
    batches = iter(loader)
    while manager.current_step() < task["steps"]:
        try:
            (inputs,) = next(batches)
        except StopIteration:
            batches = iter(loader)
            (inputs,) = next(batches)
        optimizer.zero_grad()
        torch.nn.functional.mse_loss(model(inputs), 2 * inputs).backward()
        optimizer.step()
        note_step(Path(task["notes"]), rank, manager.current_step())
    weights = b"".join(one.detach().numpy().tobytes() for one in module.parameters())
    digest = hashlib.blake2b(weights, digest_size=8).hexdigest()
    found = {"weights": digest, "batches": manager.batches_committed()}
    Path(task["notes"], f"end-{rank}.json").write_text(json.dumps(found))
    manager.shutdown()


def trained(folder: Path, steps: int, kills: int) -> tuple[dict[str, Any], list[float]]:
    """What rank 0 ended with, and how long each recovery took."""
    notes, drawn, took = Notes(folder / "notes"), random.Random(0), []

    def strike() -> None:
        for _ in range(kills):
            notes.wait_for_steps(100)
            took.append(notes.kill_once(drawn).recovered_s)

    striking = threading.Thread(target=strike, daemon=True)
    striking.start()
    TorchTrainer(
        train_func,
        train_loop_config={"notes": str(notes.folder), "steps": steps},
        scaling_config=ScalingConfig(num_workers=NUM_RANKS),
        torch_config=TorchftConfig(lighthouse_kwargs={"min_replicas": 1}, backend="gloo"),
        run_config=RunConfig(
            storage_path=str(folder), name="torchft", failure_config=FailureConfig(max_failures=-1)
        ),
    ).fit()
    return json.loads(Path(notes.folder, "end-0.json").read_text()), took


def main() -> None:
    """Train twice, and compare."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--steps", type=int, default=2000)
    asked = parser.parse_args()
    ray.init(num_cpus=NUM_RANKS + 1)
    with tempfile.TemporaryDirectory(prefix="torchft-") as scratch:
        undisturbed, _ = trained(Path(scratch, "undisturbed"), asked.steps, 0)
        killed, took = trained(Path(scratch, "killed"), asked.steps, asked.kills)
    expected = asked.steps * BATCH_SIZE
    print(
        json.dumps(
            {
                "recovered_s": took,
                "samples_dropped": expected - killed["batches"] * BATCH_SIZE // NUM_RANKS,
                "dropped_undisturbed": expected - undisturbed["batches"] * BATCH_SIZE // NUM_RANKS,
                "same_weights": killed["weights"] == undisturbed["weights"],
            }
        )
    )


if __name__ == "__main__":
    main()
