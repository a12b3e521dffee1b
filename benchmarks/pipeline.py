"""What evertrain's pipeline costs and gains beside its peers: `make bench-pipeline`.

Speed: samples/s in the loop of ResNet-18 on MNIST, two workers of one core each, in rounds in
which every contender runs once. Overhead: wall-clock seconds of the whole four-step flow on a
trivial training, as a cold process and with Prefect, MLflow and Ray already running, against
the cold process of stock `TorchTrainer.fit()`; beside them the seconds of `import torch`, which say
how fast the machine is. Every run is a process of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime
from functools import partial
from pathlib import Path

import psutil

from benchmarks.pipeline_report import FIRST_EVALUATED, ratios, table
from benchmarks.services import mlflow_server, prefect_server, ray_cluster
from train_core.storage.records.journal import read_segments
from train_core.storage.run_folder import RunFolder

ROOT = Path(__file__).parents[1]
BIN = Path(sys.executable).parent
WARM_UP = 5
POLL_S = 0.1
GLOBAL_BATCH = 128
MNIST_FILES = (
    *("train-images-idx3-ubyte", "train-labels-idx1-ubyte"),
    *("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
)
MNIST_AT = "https://ossci-datasets.s3.amazonaws.com/mnist/"
Result = dict[str, float]


class Bench:
    """One benchmark run: its scratch folder, its sizes, and what was measured."""

    def __init__(self, scratch: Path, data: str, steps: int) -> None:
        self.scratch, self.data, self.steps = scratch, data, steps
        self.measured: dict[str, list[float]] = defaultdict(list)
        self.accuracy: Result = {}
        self.number = 0

    def speed_round(self) -> None:
        """Each contender once: samples/s."""
        for peer in ("stock", "stock-tuned", "stock-model", "torchrun", "one-batch"):
            self.add(peer, self.peer(peer, self.steps)["samples_per_s"])
        self.add("evertrain", self.evertrain(self.steps)["samples_per_s"])

    def cold_round(self) -> None:
        """Stock Ray Train, at its defaults and polling often, and the flow once: seconds."""
        self.add("import torch, s", timed(lambda: run([sys.executable, "-c", "import torch"])))
        self.add("stock cold, s", timed(self.run_stock_trivial))
        often = {"RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": str(POLL_S)}
        self.add(
            f"stock cold, polls each {POLL_S} s, s", timed(partial(self.run_stock_trivial, often))
        )
        cold = partial(self.run_flow, "cold", cold_environment(self.fresh()))
        self.add("flow cold, s", timed(cold))

    def warm_round(self, environment: dict[str, str], ray_address: str) -> None:
        """The flow once, beside servers that run: seconds."""
        work = partial(self.run_flow, "warm", environment, "--ray-address", ray_address)
        self.add("flow warm, s", timed(work))

    def accuracies(self) -> None:
        """Test accuracy after one whole epoch of the tutorial and of evertrain."""
        self.accuracy["stock"] = self.peer("stock", 0, accuracy=True)["accuracy"]
        self.accuracy["evertrain"] = self.evertrain(0)["accuracy"]

    def peer(self, peer: str, steps: int, *, accuracy: bool = False) -> Result:
        """Run one of `peers/mnist.py`."""
        folder = self.fresh()
        task = {
            "peer": peer,
            "data": self.data,
            "steps": steps,
            "accuracy": accuracy,
            "out": str(folder / "result.json"),
            "scratch": str(folder),
        }
        program = [str(BIN / "torchrun"), "--standalone", "--nproc-per-node=2"]
        if peer.startswith("stock"):
            program = [sys.executable]
        run([*program, str(ROOT / "benchmarks/peers/mnist.py"), json.dumps(task)])
        found: Result = json.loads((folder / "result.json").read_text())
        return found

    def evertrain(self, steps: int) -> Result:
        """Run the retrain flow; the loop's rate from the journal's times, test accuracy."""
        folder = self.fresh()
        run(
            [
                *(str(BIN / "evertrain"), "retrain", "--no-gate", "--run=mnist", "--num-workers=2"),
                "--workload=train_core.workloads.mnist:MnistResNet18",
                f"--settings={json.dumps({'data': self.data})}",
                f"--storage={folder}",
                f"--batch-size={GLOBAL_BATCH}",
                f"--max-steps={steps}",
            ],
            cold_environment(folder),
        )
        at = RunFolder(str(folder), "mnist")
        newest = max(at.checkpoints(), key=lambda c: c.name)
        entries = read_segments(at.store, newest.manifest.journal)
        times = [entry.time for entry in entries if "train/loss" in entry.metrics]
        report = at.report()
        assert report is not None
        return {
            "samples_per_s": (len(times) - WARM_UP)
            * GLOBAL_BATCH
            / (times[-1] - times[WARM_UP - 1]),
            "accuracy": report["test_metrics"]["accuracy"],
        }

    def run_stock_trivial(self, environment: dict[str, str] | None = None) -> None:
        """Stock Ray Train on the trivial training."""
        program = str(ROOT / "benchmarks/peers/ray_trivial.py")
        run([sys.executable, program, str(self.fresh())], environment)

    def run_flow(self, kind: str, environment: dict[str, str], *more: str) -> None:
        """The whole flow on the trivial training; how soon its evaluation begins."""
        storage, notes = self.fresh(), self.fresh()
        run(
            [
                *(
                    str(BIN / "evertrain"),
                    "retrain",
                    "--no-gate",
                    f"--storage={storage}",
                    "--run=trivial",
                ),
                f"--settings={json.dumps({'notes': str(notes)})}",
                *("--workload=benchmarks.trivial:Trivial", "--epochs=5", "--batch-size=100"),
                *("--num-workers=2", "--monitor=validation/loss", "--monitor-order=min", *more),
            ],
            environment,
        )
        committed = (
            datetime.fromisoformat(checkpoint.manifest.created_at).timestamp()
            for checkpoint in RunFolder(str(storage), "trivial").checkpoints()
        )
        trained_at = max(committed)
        batches = [float(line) for note in notes.iterdir() for line in note.read_text().split()]
        first_at = min(at for at in batches if at > trained_at)
        self.add(f"{FIRST_EVALUATED}, {kind}, s", first_at - trained_at)

    def fresh(self) -> Path:
        """An empty folder."""
        self.number += 1
        folder = self.scratch / f"{self.number:03d}"
        folder.mkdir()
        return folder

    def add(self, name: str, value: float) -> None:
        """Note one measurement."""
        self.measured[name].append(value)
        print(f"  {name:44} {value:10.2f}", flush=True)


def cold_environment(folder: Path) -> dict[str, str]:
    """Nothing is there: Prefect's and MLflow's databases are new, as `make venv` prepared them."""
    return {
        "PREFECT_HOME": str(folder / "prefect"),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
    }


def run(command: list[str], environment: dict[str, str] | None = None) -> None:
    """Run a contender in a session of its own; nothing of it is left afterwards."""
    # A Ray that happens to run on this machine is not joined.
    here = {"PYTHONPATH": str(ROOT), "RAY_ADDRESS": "local"}
    env = {**os.environ, **here, **(environment or {})}
    process = subprocess.Popen(
        command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, cwd=tempfile.gettempdir(),
    )  # fmt: skip
    output, _ = process.communicate(timeout=900)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{output[-4000:]}")


def timed(work: Callable[[], None]) -> float:
    """Seconds."""
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


@contextlib.contextmanager
def warm_services(folder: Path) -> Iterator[tuple[dict[str, str], str]]:
    """Prefect's server, MLflow's server and a Ray cluster, and how a flow finds them."""
    with (
        prefect_server(folder) as prefect_url,
        mlflow_server(folder) as mlflow_url,
        ray_cluster(folder) as ray_address,
    ):
        environment = {
            "PREFECT_API_URL": prefect_url,
            "PREFECT_HOME": str(folder / "prefect-client"),
            "MLFLOW_TRACKING_URI": mlflow_url,
        }
        yield environment, ray_address


def missing_files(folder: str) -> list[str]:
    """Which of MNIST's files are not in the folder, neither as they are nor compressed."""
    return [
        name
        for name in MNIST_FILES
        if not folder or not any(Path(folder, f"{name}{end}").exists() for end in ("", ".gz"))
    ]


def main() -> None:
    """Measure, print the table and the line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    data = os.environ.get("EVERTRAIN_DATA")
    parser.add_argument(
        "--data",
        default=f"{data}/mnist" if data else "",
        help="folder of MNIST's IDX files; by default mnist/ in EVERTRAIN_DATA",
    )
    parser.add_argument("--rounds", type=int, default=3, help="runs of each contender")
    parser.add_argument("--steps", type=int, default=60, help="optimizer steps of a speed run")
    parser.add_argument("--only", choices=["speed", "overhead", "accuracy"], help="one part")
    asked = parser.parse_args()
    if asked.only != "overhead" and (missing := missing_files(asked.data)):
        parser.error(
            f"speed and accuracy are measured on MNIST: {', '.join(missing)} (or .gz) not found "
            f"in {asked.data or 'a folder, as none was named'}. The four files (11 MB) are at "
            f"{MNIST_AT}; say --data FOLDER, or measure --only overhead"
        )
    scratch = Path(tempfile.mkdtemp(prefix="evertrain-bench-"))
    bench = Bench(scratch, str(Path(asked.data).resolve()), asked.steps)
    try:
        if asked.only in (None, "overhead"):
            for _ in range(asked.rounds):
                bench.cold_round()
            with warm_services(scratch) as (environment, ray_address):
                for _ in range(asked.rounds):
                    bench.warm_round(environment, ray_address)
        if asked.only in (None, "speed"):
            for _ in range(asked.rounds):
                bench.speed_round()
        if asked.only in (None, "accuracy"):
            bench.accuracies()
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    cores, gib = psutil.cpu_count(), psutil.virtual_memory().total / 2**30
    print(f"\n{platform.processor() or platform.machine()}, {cores} cores, {gib:.0f} GiB")
    print("\n".join(table(bench.measured)))
    if bench.accuracy:
        print(f"test accuracy after one epoch: {bench.accuracy}")
    print(json.dumps(ratios(bench.measured)))


if __name__ == "__main__":
    main()
