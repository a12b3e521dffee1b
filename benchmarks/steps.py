"""How fast two versions of evertrain train, by turns: `python -m benchmarks.steps TREE TREE`.

A process of each checkout trains Digits on the same core. They take turns of 20 steps, and the one
that begins changes each time: what slows the machine slows both. Nothing is validated or saved.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

WARM_UP, TURN = 60, 20
CORE = "1"


def main() -> None:
    """Print the ratio of the two speeds; with `--train`, be one of the two processes."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("trees", nargs="*", help="two checkouts; the second is judged")
    parser.add_argument("--shards", type=int, default=2, help="default %(default)s")
    parser.add_argument("--pairs", type=int, default=120, help="default %(default)s")
    parser.add_argument("--train", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.train:
        train(asked.shards)
        return
    if len(asked.trees) != 2:
        parser.error("name two checkouts")
    programs = [started(tree, asked.shards) for tree in asked.trees]
    try:
        for program in programs:
            turn_s(program)
        pairs = []
        for number in range(asked.pairs):
            order = programs[::-1] if number % 2 else programs
            took = {program.pid: turn_s(program) for program in order}
            pairs.append([took[program.pid] for program in programs])
    finally:
        for program in programs:
            program.kill()
            program.wait()
    ratio = statistics.median(first / second for first, second in pairs)
    first, second = (1000 * statistics.median(turns) / TURN for turns in zip(*pairs, strict=True))
    print(f"{asked.shards} shards: speed_vs_first {ratio:.3f} ({first:.2f} and {second:.2f} ms)")


def started(tree: str, shards: int) -> subprocess.Popen[str]:
    """The process that trains with the checkout's code; the interpreter is this one."""
    command = ["taskset", "-c", CORE, sys.executable, str(Path(__file__).resolve())]
    return subprocess.Popen(
        [*command, "--train", "--shards", str(shards)],
        cwd=tree,
        env={"PYTHONPATH": str(Path(tree).resolve()), "PATH": "/usr/bin:/bin"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def turn_s(program: subprocess.Popen[str]) -> float:
    """Seconds of its next turn."""
    assert program.stdin is not None
    assert program.stdout is not None
    program.stdin.write("\n")
    program.stdin.flush()
    return float(program.stdout.readline())


def train(shards: int) -> None:
    """Train a turn for each line of stdin; its seconds on stdout."""
    # Of the other checkout, whose path comes first.
    from train_core.config import TrainConfig
    from train_core.policy.checkpoints.save_schedule import SaveRules
    from train_core.rank.data.recorded_workload import with_monitor
    from train_core.rank.distributed.group import Group
    from train_core.rank.loop import Trainer
    from train_core.storage.run_folder import RunFolder

    config = TrainConfig(
        workload="train_core.workloads.digits:Digits",
        epochs=10_000,
        batch_size=64,
        num_shards=shards,
        threads_per_worker=1,
        gpus_per_worker=0,
        monitor="validation/accuracy",
    )
    folder = RunFolder(tempfile.mkdtemp(), "run")
    trainer = Trainer(folder, with_monitor(config), 1, Group.current())
    trainer.checkpointer.rules = SaveRules(checkpoint_every_epochs=0)
    trainer.stop_requests.start()
    trainer.restore()

    def steps(number: int) -> None:
        for _ in range(number):
            trainer.step()
            if trainer.progress.awaits_validation(trainer.loader.plan):
                trainer.agreed.settle()
                trainer.progress.end_epoch()
            trainer.stop_if_due()
            trainer.save_if_due()

    steps(WARM_UP)
    for _ in sys.stdin:
        begin = time.perf_counter()
        steps(TURN)
        print(time.perf_counter() - begin, flush=True)


if __name__ == "__main__":
    main()
