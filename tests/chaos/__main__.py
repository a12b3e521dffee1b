"""`make chaos`: pipelines that are struck everywhere, each compared with an undisturbed one.

The last line is JSON: how many faults there were, how many pipelines ended identical, and how many
left something behind.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.services import prefect_server
from tests.chaos.pipeline import House, undisturbed
from tests.chaos.servers.failing_server import strike_server
from tests.chaos.servers.outages import OUTAGES, S3, Outage
from tests.chaos.standing import AFTER_TRAINING, HELD, INFERENCE
from tests.chaos.strike import FURTHER, Fault, Recovery, strike
from tests.conftest import has_object_store, object_store_in
from tests.flows.conftest import isolated

SCHEDULED = [
    *(Fault("rank 0", stage) for stage in HELD),
    *(Fault("rank 1", stage, rank=1) for stage in ("set-up", "first step", "mid-epoch", "upload")),
    Fault("rank 1", "validation", rank=1),
    *(Fault("all ranks", stage) for stage in ("mid-epoch", "before the manifest")),
    *(Fault("ranks 02", stage, workers=3) for stage in ("mid-epoch", "upload", "validation")),
    *(Fault("rank 1", "mid-epoch", rank=1, then=then) for then in FURTHER),
    *(
        Fault("rank 1", stage, rank=1, how=signal.SIGTERM)
        for stage in ("mid-epoch", "upload", "validation")
    ),
    *(
        Fault(victim, stage)
        for victim in ("the raylet", "the head")
        for stage in ("mid-epoch", "upload", *AFTER_TRAINING)
    ),
    *(Fault("the driver", stage) for stage in ("set-up", "mid-epoch", *AFTER_TRAINING)),
    Fault("the driver", "before the manifest"),
    Fault("who scores", INFERENCE),
    *(Fault("the flow", stage) for stage in (*HELD, *AFTER_TRAINING)),
    *(
        Fault("rank 1", stage, rank=1, how=signal.SIGSTOP)
        for stage in ("set-up", "mid-epoch", "validation")
    ),
    *(Fault("the flow", stage, how=signal.SIGTERM) for stage in ("mid-epoch", *AFTER_TRAINING)),
    *(Fault("the flow", stage, how=signal.SIGINT) for stage in ("mid-epoch", "validation")),
]
"""Rank 0 and the flow at every stage, the others where their end is another thing."""

_VICTIMS = (
    *("rank 0", "rank 1", "all ranks", "the raylet"),
    *("the head", "the driver", "the flow"),
)


def at_random(drawn: random.Random, count: int, within_s: float) -> list[Fault]:
    """So many faults at moments drawn by chance, so many seconds after the command began."""
    moments = [drawn.uniform(1, within_s) for _ in range(count)]
    return [Fault(drawn.choice(_VICTIMS), "at random", after_s=after) for after in moments]


@contextmanager
def house(home: Path, num_workers: int, *, is_on_s3: bool, has_s3: bool) -> Iterator[House]:
    with ExitStack() as used:
        storage, store = str(home / ".evertrain/runs"), home / "object-store"
        if is_on_s3 or has_s3:
            bucket = used.enter_context(object_store_in(store))
            storage = bucket if is_on_s3 else storage
        # One server for all: a command that starts its own takes ten seconds longer.
        api = used.enter_context(prefect_server(home))
        environment = isolated(home) | {"PREFECT_API_URL": api}
        yield House(home, environment, storage, num_workers=num_workers, object_store=store)


def struck(ours: House, fault: Fault | Outage, run: str, reference: dict[str, Any]) -> Recovery:
    try:
        if isinstance(fault, Outage):
            return strike_server(ours, fault, run, reference)
        return strike(ours, fault, run, reference)
    except Exception as error:  # noqa: BLE001 (whatever it is, hours of others go on)
        said = f"{type(error).__name__}: {error}"
        return Recovery(fault, True, True, math.nan, 0, [said], [])


def reference_of(ours: House, pool: ThreadPoolExecutor, jobs: int) -> tuple[dict[str, Any], float]:
    """What becomes of pipelines that nobody strikes, and how long that many at a time take."""
    began = time.monotonic()
    found = list(pool.map(partial(undisturbed, ours), (f"undisturbed-{n}" for n in range(jobs))))
    assert all(one == found[0] for one in found)
    return found[0], time.monotonic() - began


def show(recoveries: list[Recovery]) -> None:
    table = Table("fault", "stage", "recovered in s", "by itself", "steps repeated", "identical")
    for one in recoveries:
        table.add_row(
            str(one.fault),
            one.fault.stage,
            f"{one.seconds:.1f}" if one.struck else "nobody was there",
            "no" if one.again else "yes",
            str(one.steps_repeated),
            "yes" if one.is_good else f"NO: {one.faults}",
        )
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--random", type=int, default=40, help="moments beside the scheduled ones")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--only", default="", help="a regular expression of the faults")
    parser.add_argument("--jobs", type=int, default=2, help="pipelines at a time")
    parser.add_argument("--workers", type=int, default=2, choices=(2, 3, 4), help="that train")
    parser.add_argument("--s3", action="store_true", help="run folders on a real S3 server")
    asked = parser.parse_args()

    def is_asked_for(one: Fault | Outage) -> bool:
        return re.search(asked.only, f"{one} {one.stage}") is not None

    home = Path(tempfile.mkdtemp(prefix="chaos-"))
    every: list[Fault | Outage] = [*SCHEDULED, *OUTAGES]
    if not has_object_store():
        sys.stdout.write(f"no S3 server here, nobody strikes {S3}\n")
        every = [one for one in every if one.victim != S3]
    scheduled = [one for one in every if is_asked_for(one)]
    has_s3 = any(isinstance(one, Outage) and one.victim == S3 for one in scheduled)
    with ExitStack() as used:
        ours = used.enter_context(house(home, asked.workers, is_on_s3=asked.s3, has_s3=has_s3))
        pool = used.enter_context(ThreadPoolExecutor(asked.jobs))
        # Ctrl-C reaches the pipelines, too, and nothing more begins.
        used.callback(pool.shutdown, wait=False, cancel_futures=True)
        began = time.monotonic()
        reference, took_s = reference_of(ours, pool, asked.jobs)
        drawn = at_random(random.Random(asked.seed), asked.random, took_s)
        faults = [*scheduled, *(one for one in drawn if is_asked_for(one))]
        striking = {
            pool.submit(struck, ours, fault, f"struck-{number}", reference): number
            for number, fault in enumerate(faults)
        }
        for done, one in enumerate(as_completed(striking), 1):
            found, seconds = one.result(), time.monotonic() - began
            verdict = "identical" if found.is_good else f"BAD, {found.faults}"
            sys.stdout.write(
                f"{done}/{len(faults)} {found.fault}, {found.fault.stage}: {verdict}, "
                f"recovered in {found.seconds:.1f} s (struck-{striking[one]}, {seconds:.0f} s)\n"
            )
            sys.stdout.flush()
        recoveries = [one.result() for one in striking]
    show(recoveries)
    struck_ones = [one for one in recoveries if one.struck]
    counts = {
        "faults": len(struck_ones),
        "identical": sum(not one.differences for one in struck_ones),
        "left_behind": sum(bool(one.left_behind) for one in recoveries),
    }
    sys.stdout.write(json.dumps(counts) + "\n")
    if not all(one.is_good for one in recoveries):
        sys.exit(f"logs and runs are left in {home}")
    shutil.rmtree(home)


if __name__ == "__main__":
    main()
