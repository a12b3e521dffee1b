"""What is promised of a pipeline whose Prefect server is lost."""

from __future__ import annotations

import time
from pathlib import Path

from tests import commands
from tests.chaos.pipeline import LOOK_EVERY_S, House, Started
from tests.chaos.servers.outages import Outage
from tests.chaos.servers.servers import OwnPrefect, Victim
from tests.flows.prefect_side import artifacts_in_prefect, shown_in_prefect
from train_core.storage.records.names import REPORT_JSON
from train_core.storage.run_folder import RunFolder

REPORT_WITHIN_S = 120.0
"""From the moment that the pipeline goes on; undisturbed and beside another it takes 30 s."""
END_WITHIN_S = 15.0
"""From the report to the end of the command."""
BACK_IS_TOLD_WITHIN_S = 30.0
NOISE = (
    *("Traceback", "EventsWorker", "Error logging to API", "prefect._internal"),
    *("Failed to", "| ERROR", "Crash detected"),
)


def end_after_report(pipeline: Started, folder: RunFolder, since: float) -> tuple[int, list[str]]:
    """The exit code, and what of the end was too late: the report, or what came after it.

    `since`: when the pipeline went on. One that is much too late is killed.
    """
    reported_at = None
    while pipeline.process.poll() is None:
        pipeline.look()
        reported_at = reported_at or _reported_at(folder)
        if reported_at is None and time.time() > since + REPORT_WITHIN_S:
            pipeline.process.kill()
            return pipeline.process.wait(), [f"no report within {REPORT_WITHIN_S:g} s"]
        if reported_at and time.time() > max(since, reported_at) + 2 * END_WITHIN_S:
            pipeline.process.kill()
            late = f"it had not ended {2 * END_WITHIN_S:g} s after the report"
            return pipeline.process.wait(), [late]
        time.sleep(LOOK_EVERY_S / 5)
    ended_at, reported_at = time.time(), _reported_at(folder)
    took_s = ended_at - max(since, reported_at or since)
    late_ones = [f"it ended {took_s:.1f} s after the report"] if took_s > END_WITHIN_S else []
    return pipeline.process.wait(), late_ones


def prefect_faults(
    house: House, outage: Outage, victim: Victim, run: str, log: str, *, is_repaired: bool
) -> list[str]:
    """What is wrong with what was said of the server, and with what it shows afterwards."""
    file = Path(house.home, f".evertrain/logs/{run}.log").read_text()
    found = [f"the terminal has {noise!r}" for noise in NOISE if noise in log]
    told = {"the terminal": about_prefect(log), "the log": about_prefect(file)}
    for where, lines in told.items():
        if len(lines) not in _expected(outage):
            found.append(f"{where} has {len(lines)} lines about Prefect: {lines}")
    if isinstance(victim, OwnPrefect):
        tried = [line for line in victim.switch.schedule.hits if "/artifacts" in line]
        if len(tried) > 1:
            found.append(f"{len(tried)} artifacts were tried while it was away")
    shown = shown_in_prefect(house.home, run)
    if outage.comes_back:
        if shown != ["COMPLETED"]:
            found.append(f"Prefect, which was back in time, shows {shown}")
        if not {"table", "markdown"} <= set(artifacts_in_prefect(house.home, run)):
            found.append("Prefect, which was back in time, has not all artifacts")
    elif is_repaired:
        victim.mend()
        found += _after_the_next_command(house, outage, run)
    return found


def about_prefect(log: str) -> list[str]:
    """The lines that tell of Prefect's server."""
    return [line for line in log.splitlines() if "Prefect" in line and not line.startswith("see ")]


def _expected(outage: Outage) -> set[int]:
    """How many lines there may be: one for the loss, one for the return or for what is missing."""
    if outage.comes_back:
        # Where nothing had to be sent meanwhile, it was not missed.
        return {2} if outage.stage == "mid-epoch" else {0, 2}
    return {1, 2} if outage.stage in ("report", "artifacts") else {2}


def _reported_at(folder: RunFolder) -> float | None:
    if not folder.store.exists(REPORT_JSON):
        return None
    return float(folder.store.fs.modified(folder.store.path(REPORT_JSON)).timestamp())


def _after_the_next_command(house: House, outage: Outage, run: str) -> list[str]:
    """What is wrong with the flow run when the next command has found the server."""
    done = commands.run(house.command(f"{run}-next"), cwd=house.home, env=house.environment)
    found = [f"the next command failed: {done.stderr[-500:]}"] if done.returncode else []
    shown = shown_in_prefect(house.home, run)
    # Of a flow run that could not be created, nothing has to be put right.
    if shown != ["COMPLETED"] and not (outage.stage == "before the flow run" and not shown):
        found.append(f"after the next command Prefect shows {shown}")
    return found
