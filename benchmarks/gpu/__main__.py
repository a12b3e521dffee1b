"""What checkpoints cost, and how fast a small model trains, on one GPU: `make bench-gpu`.

It needs torch, torchvision, torchmetrics, pydantic, blake3, psutil, fsspec and safetensors, and
neither Ray nor Prefect nor MLflow. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path

import torch

from benchmarks.gpu import saving, throughput
from benchmarks.gpu.bench import Bench, description
from benchmarks.pipeline import MNIST_AT, missing_files
from benchmarks.report import Report

# The section that measures as often as there is time for comes last.
SECTIONS = {"throughput": throughput.measure, "saving": saving.measure}
_log = logging.getLogger(__name__)


def main() -> int:
    """Measure, print the table and the line of JSON; 1 if a section failed."""
    data = os.environ.get("EVERTRAIN_DATA")
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "cpu"], default="cuda")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run at all?")
    parser.add_argument("--only", choices=SECTIONS, help="one section")
    parser.add_argument(
        "--data",
        default=f"{data}/mnist" if data else "",
        help="folder of MNIST's IDX files; by default mnist/ in EVERTRAIN_DATA",
    )
    parser.add_argument(
        "--storage",
        default="",
        help="folder for checkpoints; by default in /dev/shm, or in a temporary folder if that is "
        "too small",
    )
    parser.add_argument("--batch-size", type=int, default=0, help="images of a step; default 128")
    parser.add_argument(
        "--data-workers",
        type=int,
        help="processes that fetch evertrain's batches; by default as many as the tuned loop has",
    )
    parser.add_argument(
        "--contenders",
        nargs="+",
        choices=("a", "b", "b'", "c", "c'", "c''", "d"),
        default=(),
        help="of throughput; default all",
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=Bench.limit_s,
        help="no further round begins when it would end later; default %(default)s",
    )
    asked = parser.parse_args()
    if asked.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch finds no GPU here: say --device cpu, with --quick, to see that it runs")
    if asked.only != "saving" and (missing := missing_files(asked.data)):
        parser.error(
            f"throughput is measured on MNIST: {', '.join(missing)} (or .gz) not found in "
            f"{asked.data or 'a folder, as none was named'}. The four files (11 MB) are at "
            f"{MNIST_AT}; say --data FOLDER, or measure --only saving"
        )
    report = Report(throughput.KEYS + saving.KEYS)
    # Short: sockets lie deep below it.
    bench = Bench(
        Path(tempfile.mkdtemp(prefix="bench-")),
        report,
        torch.device(asked.device),
        asked.quick,
        storage=asked.storage,
        data=asked.data,
        batch_size=asked.batch_size or (16 if asked.quick else 128),
        data_workers=asked.data_workers,
        contenders=asked.contenders,
        limit_s=asked.seconds,
    )
    failed = False
    try:
        for name in [asked.only] if asked.only else SECTIONS:
            print(f"{name}, after {time.perf_counter() - bench.begin:.0f} s", flush=True)
            try:
                SECTIONS[name](bench)
            except Exception:  # noqa: BLE001 (such a machine is lent: the other section is measured)
                _log.exception("%s failed", name)
                report.note(f"{name} failed: see above")
                failed = True
    finally:
        bench.close()
    print()
    print("\n".join(description(bench.device)))
    print(f"{time.perf_counter() - bench.begin:.0f} s")
    print("\n".join(report.lines()))
    print(json.dumps(report.figures))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
