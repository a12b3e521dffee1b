"""`make night`: a night in small, at a real Prefect server with a real worker.

A schedule fires again and again, new data arrives after each firing, the server is killed once and
started again, and so is the worker with all that it runs. In the morning every run has to be
right, every record true, and nothing may be left running. The last line is JSON; the exit code says
whether something is wrong.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import httpx
import psutil
from rich.console import Console
from rich.table import Table

from tests.chaos.firing import NO_NEW_DATA, Firing, moment
from tests.chaos.growing import arrive
from tests.flows.conftest import isolated
from tests.flows.deployment.deployed import (
    Server,
    Site,
    errors_in,
    filtered,
    hasty_automations,
    kill_all,
    own_prefect_file,
    scheduled_runs,
    states_of,
)
from train_core.errors import EvertrainError
from train_core.storage.run_folder import RunFolder

PARAMETERS: dict[str, Any] = {
    "workload": "tests.chaos.growing:Growing",
    "epochs": 3,
    "batch_size": 32,
    "num_shards": 2,
    "checkpoint_every_steps": 7,
    "checkpoint_backpressure": "wait",
    "skip_unchanged": True,
}
PAUSE_S = 0.1
"""What a step takes, so that there is somebody to strike."""
# The shortest that Prefect has, and more than two of them.
HEARTBEAT_S, MISSED_S = 30, 75
DOWN_S = 10.0
PASSING = {"Pending", "Scheduled", "Submitting", "Late"}
# Prefect's automations wait up to a quarter of an hour for an event that a killed server lost.
ENDS_WITHIN_S = 2400.0
# What crashed is run again.
ENDED = {"COMPLETED", "FAILED", "CANCELLED"}


class Night:
    """The server, the worker, the data, and what happens to them."""

    def __init__(self, home: Path, num_firings: int, interval_s: float) -> None:
        self.home, self.data = home, home / "data"
        self._num_firings, self._interval_s = num_firings, interval_s
        environment = isolated(home) | {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_S)}
        self.server = Server(home, environment)
        self.site = Site(home, environment, self.server.url)
        self.storage, self.tracking_uri = str(home / "runs"), f"sqlite:///{home}/mlflow.db"
        self._worker: psutil.Process | None = None
        self._workers = ExitStack()
        self._schedule: str | None = None
        self._struck = ""
        self._deliveries = 0
        self._begin = time.monotonic()

    def say(self, what: str) -> None:
        sys.stdout.write(f"{time.monotonic() - self._begin:6.0f} s  {what}\n")
        sys.stdout.flush()

    def deliver(self) -> None:
        self._deliveries += 1
        self.say(f"new data: {arrive(self.data, self._deliveries).name}")

    def start_worker(self) -> None:
        self._worker = psutil.Process(self._workers.enter_context(self.site.worker()).pid)

    def set_up(self) -> None:
        """Deploy, and switch the schedule on."""
        self.server.start()
        settings = {"data": str(self.data), "pause_s": PAUSE_S}
        file = own_prefect_file(self.home / "own", **PARAMETERS, settings=settings)
        self.site.deploy(hasty_automations(self.home, MISSED_S), file)
        self.deliver()
        self.start_worker()
        self._schedule = self.site.schedule("--interval", f"{self._interval_s:g}")
        self.say(f"the schedule is on: every {self._interval_s:g} s")

    def fired(self) -> list[dict[str, Any]]:
        """The flow runs that were due by now."""
        return [
            one
            for one in scheduled_runs(self.server.url)
            if moment(one["expected_start_time"]) <= time.time()
        ]

    def _trains(self) -> bool:
        """Whether some flow run is amid its training that was not struck before: it is now."""
        for one in self.fired():
            if one["state_type"] == "RUNNING" and one["name"] != self._struck:
                with suppress(EvertrainError):
                    folder = RunFolder(self.storage, one["name"])
                    if folder.report() is None and (folder.live() or {}).get("step", 0) > 0:
                        self._struck = one["name"]
                        return True
        return False

    def kill_server(self) -> None:
        self._wait(self._trains, "nothing trains")
        self.say(f"the server is killed, amid {self._struck}")
        self.server.kill()
        time.sleep(DOWN_S)
        self.server.start()
        self.say("the server is back")

    def kill_worker(self) -> None:
        self._wait(self._trains, "nothing trains")
        self.say(f"the worker is killed, with all that it runs, amid {self._struck}")
        assert self._worker is not None
        kill_all(self._worker)
        self._workers.close()
        time.sleep(DOWN_S)
        self.start_worker()
        self.say("another worker is there")

    def pass_by(self) -> None:
        """Let the schedule fire as often as asked, with all that happens meanwhile."""
        strikes = {
            max(1, self._num_firings // 3): self.kill_server,
            max(2, 2 * self._num_firings // 3): self.kill_worker,
        }
        for number in range(1, self._num_firings + 1):
            self._wait(partial(self._has_fired, number), f"firing {number} did not come")
            self.say(f"firing {number}")
            if number in strikes:
                # It has not listed its files yet: so it has something to train on.
                self.deliver()
                strikes[number]()
            if number < self._num_firings:
                # While a run trains, or another one prepares: it comes when it comes.
                self.deliver()
        self._wait(self._all_ended, "not all runs ended")
        self.say("all runs ended")

    def _has_fired(self, number: int) -> bool:
        return len(self.fired()) >= number

    def _all_ended(self) -> bool:
        return all(one["state_type"] in ENDED for one in scheduled_runs(self.server.url))

    def _wait(self, what: Callable[[], bool], title: str) -> None:
        deadline = time.monotonic() + ENDS_WITHIN_S
        while True:
            with suppress(httpx.HTTPError):
                if self._schedule and self._has_fired(self._num_firings):
                    self.site.switch_off(self._schedule)
                    self._schedule = None
                if what():
                    return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{title} within {ENDS_WITHIN_S:g} s; see {self.home}/*.log")
            time.sleep(1)

    def firings(self) -> list[Firing]:
        return [
            Firing(
                one,
                states_of(self.server.url, one["id"]),
                self.storage,
                self.data,
                self.tracking_uri,
            )
            for one in self.fired()
        ]

    def left(self) -> list[str]:
        """What is left in the morning, before the worker and the server end."""
        found = []
        assert self._worker is not None
        _, alive = psutil.wait_procs(self._worker.children(recursive=True), timeout=60)
        found += [f"below the worker: {process.pid}" for process in alive]
        for limit in filtered(self.server.url, "v2/concurrency_limits"):
            if limit["active_slots"]:
                found.append(f"{limit['active_slots']} slots of {limit['name']} are taken")
        return found

    def end(self) -> list[str]:
        """End the worker and the server; the processes of this night that are left then."""
        self._workers.close()
        self.server.stop()
        ours = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                if process.environ().get("PREFECT_HOME") == str(self.home / "prefect"):
                    ours.append(process)
        _, alive = psutil.wait_procs(ours, timeout=60)
        return [f"process {one.pid} {' '.join(one.cmdline())[:80]}" for one in alive]


def shown(firings: list[Firing]) -> Table:
    """A row for each firing."""
    table = Table("firing", "run", "states", "attempts", "files", "faults")
    for number, one in enumerate(firings, start=1):
        steps = [name for name, _ in groupby(one.state_names) if name not in PASSING]
        trained = one.trained and not one.faults
        attempts = str(one.folder.checkpoints()[-1].name.attempt) if trained else "-"
        files = str(one.num_files) if trained else "-" if one.trained else NO_NEW_DATA
        faults = "; ".join(one.faults) or "none"
        table.add_row(str(number), one.name, " ".join(steps), attempts, files, faults)
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--firings", type=int, default=6)
    parser.add_argument("--interval-s", type=float, default=60)
    asked = parser.parse_args()
    # Ray's sockets need a short path.
    home = Path(tempfile.mkdtemp(prefix="night-", dir="/tmp"))
    night = Night(home, asked.firings, asked.interval_s)
    left: list[str] = []
    try:
        night.set_up()
        night.pass_by()
        firings = night.firings()
        left += night.left()
    finally:
        left += night.end()
    for one in firings:
        one.check()
    Console(width=180).print(shown(firings))
    errors = errors_in(home / "server.log")
    told = {
        "firings": len(firings),
        "right": sum(not one.faults for one in firings),
        "run again": sum("AwaitingRetry" in one.state_names for one in firings),
        "waited": sum("AwaitingConcurrencySlot" in one.state_names for one in firings),
        "left": left,
        "errors of the server": [one.splitlines()[0] for one in errors],
        "seconds": round(time.monotonic() - night._begin),
        "home": str(home),
    }
    wrong = left or told["right"] != told["firings"] or told["firings"] < asked.firings
    if not wrong:
        shutil.rmtree(home)
        del told["home"]
    sys.stdout.write(json.dumps(told) + "\n")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
