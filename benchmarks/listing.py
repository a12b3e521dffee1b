"""How long it takes to list many checkpoints and many runs on a disk: `make bench-listing`.

Each listing is a process of its own, which imports evertrain first and is then timed; the folders
were just written, so the system's cache has them. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

from train_core.client.checkpoints import list_checkpoints, verify_run
from train_core.client.run_summaries import list_runs
from train_core.client.runs import prune_run
from train_core.config import TrainConfig
from train_core.storage.coordination.fence_list import FenceList
from train_core.storage.coordination.holder import Holder
from train_core.storage.coordination.lease import LeaseHeartbeat
from train_core.storage.records.journal import Entry
from train_core.storage.records.manifest import CheckpointManifest, FileEntry
from train_core.storage.records.names import CheckpointName
from train_core.storage.records.run_record import RunRecord
from train_core.storage.run_folder import RunFolder

COUNT, ROUNDS = 2000, 5
FILES = ("model.safetensors", "optimizer.safetensors", "state.json")
_AT = "2026-01-01T00:00:00+00:00"
_HEADER = (2).to_bytes(8, "little") + b"{}"

LISTINGS: dict[str, Callable[[RunFolder], object]] = {
    "checkpoints": list_checkpoints,
    "runs": lambda folder: list_runs(folder.storage),
    "prune --dry-run": lambda folder: prune_run(folder, dry_run=True),
    "verify": lambda folder: [one for one in verify_run(folder) if one.faults],
}
"""What is timed: of one run with many checkpoints, or of a storage with many runs."""


def grow(storage: Path, name: str, num_checkpoints: int) -> None:
    """A finished run with so many checkpoints, each with a segment of the journal and metrics."""
    folder = storage / name
    config = TrainConfig(max_steps=num_checkpoints, epochs=num_checkpoints, keep_last=COUNT)
    record = RunRecord(
        name=name,
        created_at=_AT,
        config=config,
        pipeline={},
        fingerprint={"torch": "2.13.0"},
        datasets={"train": {"samples": 1437, "digest": "0" * 64}},
    )
    write(folder / "run.json", record.model_dump_json(indent=1).encode())
    for step in range(1, num_checkpoints + 1):
        segment = f"steps-{step:08d}-{step:08d}-a0001.jsonl"
        line = Entry(step=step, time=1.0, metrics={"train/loss": 0.5}).model_dump_json() + "\n"
        write(folder / "journal" / segment, line.encode())
        above = folder / "checkpoints" / str(CheckpointName(step, 1))
        contents = {file: b"{}" if file == "state.json" else _HEADER for file in FILES}
        for file, data in contents.items():
            write(above / file, data)
        manifest = CheckpointManifest(
            created_at=_AT,
            attempt=1,
            files=tuple(FileEntry.of(file, data) for file, data in contents.items()),
            step=step,
            epoch=step,
            samples_seen=step * 128,
            metrics={"train/loss": 0.5, "validation/loss": 0.5, "validation/accuracy": 0.5},
            validated=True,
            stopped_by="max_steps" if step == num_checkpoints else "",
            journal=(FileEntry.of(segment, line.encode()),),
        )
        write(above / "manifest.json", manifest.to_json())
    held = {
        "0001.json": Holder.here(),
        "0001-beat.json": LeaseHeartbeat(counter=1, released=True, end="FINISHED"),
        "0001-seal.json": FenceList(checkpoints=()),
    }
    for lease, document in held.items():
        write(folder / "lease" / lease, document.model_dump_json().encode())
    last = str(CheckpointName(num_checkpoints, 1))
    report = {"train": {"step": num_checkpoints}, "best": {"name": last}, "run": name}
    write(folder / "report.json", json.dumps(report).encode())


def write(path: Path, data: bytes) -> None:
    """Write a file, and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def timed(listing: str, storage: str, run: str) -> float:
    """Seconds of the listing, in a process of its own."""
    asked = [sys.executable, "-m", "benchmarks.listing", "--time", listing, storage, run]
    return float(subprocess.run(asked, check=True, capture_output=True, text=True).stdout)


def main() -> None:
    """Write the folders, time every listing, print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--count", type=int, default=COUNT, help="of checkpoints, and of runs")
    parser.add_argument("--time", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.time:
        listing, storage, run = given.time
        folder, begun = RunFolder(storage, run), time.perf_counter()
        LISTINGS[listing](folder)
        print(time.perf_counter() - begun)
        return
    with tempfile.TemporaryDirectory(prefix="bench-") as place:
        one, many = Path(place, "one"), Path(place, "many")
        grow(one, "run", given.count)
        for number in range(given.count):
            grow(many, f"run-{number:04d}", 1)
        places = {"runs": (many, "run-0000")}
        seconds = {
            listing: [
                timed(listing, *map(str, places.get(listing, (one, "run"))))
                for _ in range(given.rounds)
            ]
            for listing in LISTINGS
        }
    for listing, found in seconds.items():
        rest = f"{median(found):.2f} | {min(found):.2f} | {max(found):.2f} |"
        print(f"| {listing}, {given.count}, s | {len(found)} | {rest}")
    medians = {listing: round(median(found), 3) for listing, found in seconds.items()}
    slowest = max(medians["checkpoints"], medians["runs"])
    print(json.dumps({f"list_{given.count}_s": slowest, "seconds": medians}))


if __name__ == "__main__":
    main()
