"""Makes `installation`: what a machine has after a week with an earlier version of evertrain.

    git archive de806b6 flows tasks train_core | tar -x -C /opt/evertrain
    PYTHONPATH=/opt/evertrain python tests/earlier_versions/make_installation.py

as root of a machine that is thrown away, in an environment of that time. All that is written is
written by that version, in /srv/evertrain, and copied from there. Left out of the copy, as it is
large and nothing reads it: pictures, and the code that travels with each model in MLflow.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import psutil
from safetensors.numpy import load_file

HERE = Path(__file__).parent
HOME = Path("/srv/evertrain")
RUNS, DATABASE = HOME / "runs", HOME / "mlflow.db"
RETRAIN = ("retrain", "--batch-size", "64", "--num-workers", "1", "--gpus-per-worker", "0")
SMALL = ("--settings", '{"width": 2}', "--num-shards", "2")
HALF = (
    *(*RETRAIN, *SMALL, "--workload", "nightly:Nightly", "--epochs", "4", "--no-gate"),
    *("--checkpoint-every-steps", "7", "--checkpoint-backpressure", "wait", "--keep-last", "3"),
)
COUNTED = (
    *("retrain", "--train-fn", "nightly:count", "--train-loop-config", '{"target": 5}'),
    *("--num-workers", "1", "--gpus-per-worker", "0"),
    *("--monitor", "loss", "--monitor-order", "min"),
)
BETTER = ("--min-improvement=-1", "--keep-last", "3")
PINS = """
import os, signal, sys
from train_core.client.runs import open_run
from train_core.storage.coordination import pins
folder = open_run(sys.argv[1]).folder
first, second, _ = (one.name for one in folder.checkpoints())
pins.pin(folder.store, first, "infer-0badcafe", "infer")
pins.pin(folder.store, second, "infer-1badcafe", "infer", job="evertrain-wednesday-infer")
os.kill(os.getpid(), signal.SIGKILL)
"""


def outcome_of(run: Path) -> dict[str, str]:
    """The digest of each tensor of the newest checkpoint, and of every metric of every step.

    From the bytes on the disk: it shall be the same whatever becomes of the code that reads them.
    """
    newest = max(run.glob("checkpoints/*/manifest.json")).parent
    found = {
        f"{file.name.partition('-')[0].removesuffix('.safetensors')}/{name}": sha256(
            f"{tensor.dtype} {tensor.shape}".encode() + tensor.tobytes()
        ).hexdigest()
        for file in sorted(newest.glob("*.safetensors"))
        for name, tensor in sorted(load_file(file).items())
    }
    covered = json.loads((newest / "manifest.json").read_text())["journal"]
    lines = (
        line for one in covered for line in (run / "journal" / one["name"]).read_text().splitlines()
    )
    metrics = [[entry["step"], entry["metrics"]] for entry in map(json.loads, lines)]
    found["metrics"] = sha256(json.dumps(metrics, sort_keys=True).encode()).hexdigest()
    return {"checkpoint": newest.name, **found}


def processor() -> str:
    """Vendor, family and model: others may end with other bits."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    found = dict(line.split("\t: ", 1) for line in lines if "\t: " in line)
    return " ".join(found.get(key, "") for key in ("vendor_id", "cpu family", "model\t"))


def environment() -> dict[str, str]:
    """Of the commands: their own servers, and the project of a user."""
    return {
        **os.environ,
        "PYTHONPATH": f"{os.environ['PYTHONPATH']}:{HOME / 'project'}",
        "PREFECT_HOME": "/tmp/earlier/prefect",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "EVERTRAIN_STORAGE": str(RUNS),
        "MLFLOW_TRACKING_URI": f"sqlite:///{DATABASE}",
    }


def evertrain(*arguments: str, **more: str) -> None:
    command = [sys.executable, "-m", "flows.cli", *arguments]
    subprocess.run(command, cwd=HOME, env=environment() | more, check=True)


def killed(*arguments: str, after: str, once: Callable[[], bool]) -> None:
    """Run a command that stands still after a step, and kill all of its processes there."""
    command = [sys.executable, "-m", "flows.cli", *arguments]
    held = environment() | {"NIGHTLY_HOLD_AFTER": after}
    with subprocess.Popen(command, cwd=HOME, env=held, start_new_session=True) as process:
        while not once():
            assert process.poll() is None
            time.sleep(0.1)
        time.sleep(5)  # The mirror has sent what there was.
        top = psutil.Process(process.pid)
        for one in [top, *top.children(recursive=True)]:
            one.kill()


def python(code: str, *arguments: str) -> str:
    """What a program says that uses that version as a library."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(
        command, env=environment(), cwd=HERE.parents[1], capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.stdout


def week() -> None:
    """What that version was told to do."""
    evertrain(*RETRAIN, *SMALL, "--epochs", "2", "--infer-input", "test", "--run", "monday")
    asked = (*RETRAIN, *SMALL, "--epochs", "3", *BETTER)
    evertrain(*asked, "--run", "tuesday", "--require-approval")
    answer = ("--reason", "looked at it", "--by", "ann")
    evertrain("approve", "Digits", "2", "--reject", *answer)
    evertrain(*asked, "--run", "wednesday", "--seed", "1")
    evertrain("rollback", "Digits", "--reason", "the shop complains", "--by", "ann")
    evertrain(*asked, "--run", "thursday", "--seed", "2", "--require-approval")
    python(PINS, str(RUNS / "wednesday"))

    manifest = RUNS / "half/checkpoints/step-00000049-a0001/manifest.json"
    killed(*HALF, "--run", "half", after="52", once=manifest.exists)
    third = RUNS / "counted/checkpoints/step-00000003-a0001/manifest.json"
    killed(*COUNTED, "--run", "counted", after="3", once=third.exists)

    elsewhere = ("--storage", "/tmp/earlier/runs", "--run", "half")
    evertrain(*HALF, *elsewhere, "--tracking-uri", "sqlite:////tmp/earlier/mlflow.db")
    outcome = {"processor": processor(), **outcome_of(Path("/tmp/earlier/runs/half"))}
    (HOME / "undisturbed.json").write_text(json.dumps(outcome, indent=1) + "\n")


def copy() -> None:
    """Copy what is kept, from a machine that nobody knows."""
    target = HERE / "installation"
    for name in ("runs", "mlartifacts"):
        shutil.rmtree(target / name, ignore_errors=True)
        shutil.copytree(HOME / name, target / name, ignore=shutil.ignore_patterns("*.png"))
    shutil.copy(HOME / "undisturbed.json", target)
    for code in target.glob("mlartifacts/models/*/artifacts/code"):
        shutil.rmtree(code)
        code.mkdir()
        (code / ".gitkeep").touch()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    for file in target.glob("runs/**/*.json"):
        text = file.read_text()
        if socket.gethostname() in text:
            kept = text.replace(socket.gethostname(), "night-1").replace(boot, "0" * 8 + boot[8:])
            file.write_text(kept)
    (target / "mlflow.db").unlink(missing_ok=True)
    with closing(sqlite3.connect(DATABASE)) as source:
        source.execute("PRAGMA page_size = 1024")
        source.execute("VACUUM INTO ?", (str(target / "mlflow.db"),))


if __name__ == "__main__":
    for folder in (HOME, Path("/tmp/earlier")):
        shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / "installation/project", HOME / "project")
    week()
    copy()
