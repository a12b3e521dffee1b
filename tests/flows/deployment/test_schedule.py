"""Schedules as an operator has them: switched on at a real server, and carried out by a worker."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.chaos.growing import ROWS, arrive
from tests.flows.conftest import isolated
from tests.flows.deployment.deployed import (
    Server,
    Site,
    errors_in,
    flow_of,
    flow_runs,
    own_prefect_file,
    scheduled_runs,
    state,
    states_of,
    wait_for,
)
from train_core.storage.run_folder import RunFolder

# A server and five commands of Prefect's, beside other work.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

INTERVAL_S = 20
LONG_S = 400


@pytest.fixture
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not that of the other tests: what is scheduled here would run among theirs."""
    return tmp_path_factory.mktemp("scheduled")


@pytest.fixture
def api(home: Path) -> Iterator[str]:
    # It looks for what is to be scheduled once a minute, if it is not told otherwise.
    hasty = {"PREFECT_SERVER_SERVICES_SCHEDULER_LOOP_SECONDS": "2"}
    with Server(home, isolated(home) | hasty) as server:
        yield server.url


@pytest.fixture
def file(home: Path) -> Path:
    """A prefect.yaml of one's own, with a workload on a folder that grows."""
    return own_prefect_file(
        home / "own",
        workload="tests.chaos.growing:Growing",
        settings={"data": str(home / "data")},
        epochs=2,
        batch_size=32,
        num_shards=2,
    )


@pytest.fixture
def site(home: Path, api: str, file: Path) -> Site:
    made = Site(home, isolated(home), api)
    made.deploy(file=file)
    return made


@pytest.mark.promise("schedule")
def test_a_schedule_schedules_runs_and_stays_on_when_it_is_deployed_again(
    site: Site, api: str, home: Path, file: Path
) -> None:
    assert site.schedules() == []
    site.schedule("--cron", "30 2 * * *", "--timezone", "UTC")
    wait_for(lambda: scheduled_runs(api), home)
    due = datetime.fromisoformat(scheduled_runs(api)[0]["expected_start_time"])
    assert (due.hour, due.minute) == (2, 30)
    switched_on = site.schedules()
    assert [one["active"] for one in switched_on] == [True]
    site.deploy_again(file)
    assert site.schedules() == switched_on
    assert errors_in(home / "server.log") == []


@pytest.mark.promise("schedule")
def test_a_schedule_of_an_earlier_prefect_yaml_stays_as_it_was_switched(
    site: Site, file: Path
) -> None:
    earlier = yaml.safe_load(file.read_text())
    nightly = {"cron": "0 3 * * *", "timezone": "UTC", "active": False, "slug": "nightly"}
    earlier["deployments"][0]["schedules"] = [nightly]
    with_schedule = file.with_name("earlier.yaml")
    with_schedule.write_text(yaml.safe_dump(earlier))
    site.deploy_again(with_schedule)
    (schedule,) = site.schedules()
    site.prefect("deployment", "schedule", "resume", "retrain/retrain", schedule["id"])
    (woken,) = site.schedules()
    site.deploy_again()
    assert site.schedules() == [woken]
    assert (woken["slug"], woken["active"]) == ("nightly", True)


def waits(flow_run: dict[str, Any]) -> bool:
    return bool(flow_run["state_name"] == "AwaitingConcurrencySlot")


def samples_of(folder: RunFolder) -> int:
    return sum(int(split["samples"]) for split in folder.record().datasets.values())


def names_of(states: list[dict[str, Any]]) -> list[str]:
    return [str(state["name"]) for state in states]


@pytest.mark.promise("one-at-a-time", "automation")
@pytest.mark.timeout(1200)
def test_a_schedule_fires_again_and_again_one_waits_and_one_that_dies_is_run_again(
    site: Site, api: str, home: Path, file: Path
) -> None:
    site.deploy_again(file)
    data, notes = home / "data", home / "notes"
    known = {one["id"] for one in scheduled_runs(api)}

    def fired() -> list[dict[str, Any]]:
        """What was due by now."""
        new = [one for one in scheduled_runs(api) if one["id"] not in known]
        return [one for one in new if one["state_name"] != "Scheduled"]

    def held() -> str:
        """The run that stands still, once there is one."""
        wait_for((notes / "held").exists, home, LONG_S)
        (running,) = (one["name"] for one in fired() if one["state_type"] == "RUNNING")
        return str(running)

    arrive(data, 1)
    notes.mkdir()
    with site.worker():
        schedule = site.schedule("--interval", str(INTERVAL_S))
        wait_for(lambda: len(fired()) >= 2, home, LONG_S)
        site.switch_off(schedule)
        first = held()
        wait_for(lambda: any(waits(one) for one in fired()), home, LONG_S)
        arrive(data, 2)
        (notes / "go-on").touch()
        wait_for(lambda: state(api, first) == "COMPLETED", home, LONG_S)
        # One that waited stands still now, and dies.
        for note in notes.iterdir():
            note.unlink()
        second = held()
        flow_of(RunFolder(str(home / "runs"), second)).kill()
        (notes / "go-on").touch()
        wait_for(lambda: {one["state_type"] for one in fired()} == {"COMPLETED"}, home, LONG_S)
    shutil.rmtree(notes)

    runs = [flow_runs(api, name)[0] for name in (first, second)]
    states = [states_of(api, one["id"]) for one in runs]
    assert "Crashed" not in names_of(states[0])
    assert {"AwaitingConcurrencySlot", "Crashed", "AwaitingRetry"} <= set(names_of(states[1]))
    began = next(state["timestamp"] for state in states[1] if state["type"] == "RUNNING")
    assert datetime.fromisoformat(began) > datetime.fromisoformat(runs[0]["end_time"])
    for num_files, attempt, run in zip((1, 2), (1, 2), runs, strict=True):
        folder = RunFolder(str(home / "runs"), run["name"])
        assert folder.report() is not None
        assert samples_of(folder) == num_files * ROWS
        assert folder.checkpoints()[-1].name.attempt == attempt
    assert errors_in(home / "server.log") == []
