"""`make chaos`: pipelines that are struck everywhere, each compared with an undisturbed one.

The last line is JSON: how many faults there were, how many pipelines ended identical, and how many
left something behind.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from rich.console import Console
from rich.table import Table

from tests.chaos.faults import SCHEDULED, at_random
from tests.chaos.pipeline import House, Recovery, strike, undisturbed
from tests.conftest import object_store_in
from tests.flows.conftest import isolated


@contextmanager
def house(*, is_on_s3: bool) -> Iterator[House]:
    with ExitStack() as used:
        home = Path(used.enter_context(tempfile.TemporaryDirectory(prefix="chaos-")))
        storage = str(home / ".evertrain/runs")
        if is_on_s3:
            storage = used.enter_context(object_store_in(home / "object-store"))
        yield House(home, isolated(home), storage)


def show(recoveries: list[Recovery]) -> None:
    table = Table("fault", "stage", "recovered in s", "by itself", "steps repeated", "identical")
    for one in recoveries:
        table.add_row(
            str(one.fault),
            one.fault.stage,
            f"{one.seconds:.1f}",
            "no" if one.again else "yes",
            str(one.steps_repeated),
            "yes" if one.is_good else f"NO: {one.faults}",
        )
    Console(width=140).print(table)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--random", type=int, default=40, help="moments beside the scheduled ones")
    parser.add_argument("--seed", type=int, default=0, help="of the random moments")
    parser.add_argument("--only", default="", help="faults whose text has this")
    parser.add_argument("--s3", action="store_true", help="run folders on a real S3 server")
    asked = parser.parse_args()
    faults = [*SCHEDULED, *at_random(random.Random(asked.seed), asked.random)]
    faults = [fault for fault in faults if asked.only in f"{fault} {fault.stage}"]
    recoveries = []
    with house(is_on_s3=asked.s3) as ours:
        reference = undisturbed(ours)
        for number, fault in enumerate(faults):
            recovery = strike(ours, fault, f"struck-{number}", reference)
            recoveries.append(recovery)
            verdict = "identical" if recovery.is_good else f"BAD, {recovery.faults}"
            sys.stdout.write(f"{number + 1}/{len(faults)} {fault}, {fault.stage}: {verdict}\n")
            sys.stdout.flush()
    show(recoveries)
    sys.stdout.write(
        json.dumps(
            {
                "faults": len(recoveries),
                "identical": sum(not one.differences for one in recoveries),
                "left_behind": sum(bool(one.left_behind) for one in recoveries),
            }
        )
        + "\n"
    )
    sys.exit(not all(one.is_good for one in recoveries))


if __name__ == "__main__":
    main()
