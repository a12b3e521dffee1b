"""A pipeline whose server fails at a stage, brought to its end and compared as any other."""

from __future__ import annotations

import math
import subprocess
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.chaos.pipeline import House, Started, outcome, remaining, started, unfinished
from tests.chaos.servers.outages import ELSEWHERE, EMBEDDED, MLFLOW, S3, Outage
from tests.chaos.servers.prefect_lost import (
    BACK_IS_TOLD_WITHIN_S,
    about_prefect,
    end_after_report,
    prefect_faults,
)
from tests.chaos.servers.servers import EmbeddedPrefect, OwnGateway, OwnMlflow, OwnPrefect, Victim
from tests.chaos.standing import HOLD, NOTES, is_held, newest_step
from tests.chaos.strike import Recovery, left_in, recovered_at, repeated
from tests.conftest import BUCKET
from tests.flows.prefect_side import shown_in_prefect


def strike_server(
    house: House, outage: Outage, run: str, reference: dict[str, Any], *, is_repaired: bool = True
) -> Recovery:
    """Have a server of a new pipeline fail, bring the pipeline to its end, and compare it.

    `is_repaired`: whether the next command is looked at, which has to put right what Prefect shows.
    """
    own = house.home / f"own-{run}"
    own.mkdir()
    with (
        # Short: Ray's sockets lie in it.
        tempfile.TemporaryDirectory(prefix="c-", dir="/tmp", ignore_cleanup_errors=True) as scratch,
        victim_of(outage, house, own) as victim,
    ):
        ours = at_home(house, outage, own, victim, run)
        return _strike(ours, outage, victim, run, reference, Path(scratch), is_repaired=is_repaired)


def victim_of(outage: Outage, house: House, own: Path) -> Victim:
    """The server, whose files lie in `own`."""
    if outage.victim == EMBEDDED:
        return EmbeddedPrefect(own)
    if outage.victim == ELSEWHERE:
        return OwnPrefect(own)
    if outage.victim == MLFLOW:
        return OwnMlflow(own)
    assert house.object_store, "there is no S3 server here"
    return OwnGateway(own, house.object_store)


def at_home(house: House, outage: Outage, own: Path, victim: Victim, run: str) -> House:
    """Where the pipeline lives: with a server of its own, and what the others have."""
    environment = house.environment | victim.environment
    ours = replace(house, environment=environment, hang_timeout_s=600)
    if outage.victim == S3:
        return replace(ours, storage=f"s3://{BUCKET}/{run}")
    if not outage.is_prefects:
        return ours
    # What Prefect shows is its own, too.
    if outage.victim == EMBEDDED:
        environment.pop("PREFECT_API_URL", None)
    return replace(ours, home=own)


def _strike(
    house: House,
    outage: Outage,
    victim: Victim,
    run: str,
    reference: dict[str, Any],
    scratch: Path,
    *,
    is_repaired: bool,
) -> Recovery:
    folder = house.folder(run)
    notes = scratch / "notes"
    notes.mkdir()
    told = {HOLD: f"{outage.stage}@0", NOTES: str(notes)}
    environment = house.environment | told | {"TMPDIR": str(scratch)}
    with started(house.command(run, told), house.home, environment) as pipeline:
        pipeline.wait_for(outage.stage, notes)
        pipeline.look()
        at = newest_step(notes)
        victim.fail(outage.way, pipeline.process.pid)
        struck_at = time.time()
        if outage.is_prefects and outage.comes_back and is_held(outage.stage):
            # The rest of the pipeline is shorter than the server is away.
            wait(pipeline, outage.away_s)
            victim.mend()
            wait_until_told(pipeline)
        go_on_at = time.time()
        (notes / "go-on").touch()
        if outage.comes_back:
            wait(pipeline, struck_at + outage.away_s - time.time())
            victim.mend()
        if outage.is_prefects:
            code, late = end_after_report(pipeline, folder, go_on_at)
        else:
            code, late = pipeline.end(), []
    left = remaining(pipeline.belongings) + left_in(scratch, besides="notes") + unfinished(folder)
    log = pipeline.log
    differences = [f"exit code {code}: {log[-500:]}"] if code else []
    differences += late
    if folder.report() is None:
        return Recovery(outage, True, False, math.nan, 0, [*differences, "no report"], left)
    found = outcome(house, run)
    if outage.victim == MLFLOW and found["mlflow"] != reference["mlflow"]:
        # What an operator does whose pipeline has ended by the time that the server is back.
        house.mirror(run)
        found = outcome(house, run)
    differences += [name for name in reference if found[name] != reference[name]]
    attempts = {one.name.attempt for one in folder.checkpoints()}
    if attempts != {1}:
        differences.append(f"attempts: {attempts}")
    if outage.is_prefects:
        differences += prefect_faults(house, outage, victim, run, log, is_repaired=is_repaired)
    elif (shown := shown_in_prefect(house.home, run)) != ["COMPLETED"]:
        differences.append(f"what Prefect shows: {shown}")
    seconds = recovered_at(folder, at) - struck_at
    return Recovery(outage, True, False, seconds, repeated(house, run, at), differences, left)


def wait(pipeline: Started, seconds: float) -> None:
    """So long, or until the pipeline has ended."""
    with suppress(subprocess.TimeoutExpired):
        pipeline.process.wait(max(0.0, seconds))


def wait_until_told(pipeline: Started) -> None:
    """Wait until it says that the server is back, which it may not have missed."""
    deadline = time.monotonic() + BACK_IS_TOLD_WITHIN_S
    while len(about_prefect(pipeline.log)) < 2 and time.monotonic() < deadline:
        wait(pipeline, 0.2)
