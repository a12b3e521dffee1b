"""Whole pipelines on an S3 server that is away for a while, or slow."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.pipeline import House, outcome, started, undisturbed
from tests.chaos.standing import HOLD, NOTES
from tests.flows.conftest import isolated
from tests.storage.doubles.fault_proxy import Fault, FaultProxy, Kind

pytestmark = [pytest.mark.slow, pytest.mark.s3, pytest.mark.timeout(600)]

AWAY = Fault(Kind.REFUSE, times=math.inf)
NOT_STORED = "a checkpoint is not stored yet, training goes on"
"""One operation is tried again for a minute, and a checkpoint may be under way already."""


class Skipping(House):
    """Pipelines that leave out a checkpoint that is due while the last one is being stored."""

    def command(self, run: str, told: dict[str, str] | None = None) -> list[str]:
        return ["skip" if word == "wait" else word for word in super().command(run, told)]


@pytest.fixture
def proxy(object_store: str) -> Iterator[FaultProxy]:
    """What lies between the pipelines and the server."""
    with FaultProxy(os.environ["AWS_ENDPOINT_URL"]) as made:
        yield made


@pytest.fixture
def house(proxy: FaultProxy, object_store: str, tmp_path: Path) -> House:
    environment = isolated(tmp_path) | {"AWS_ENDPOINT_URL": proxy.url}
    return Skipping(tmp_path, environment, f"{object_store}/{uuid.uuid4().hex}")


def test_a_storage_that_is_away_for_a_minute(proxy: FaultProxy, house: House) -> None:
    """Away from the middle of an epoch, past its end: the training goes on, and nothing is lost."""
    reference = undisturbed(house)
    notes = house.home / "notes"
    notes.mkdir()
    log = house.home / ".evertrain/logs/away.log"
    there = house.environment | {HOLD: "mid-epoch@0", NOTES: str(notes)}
    with started(house.command("away"), house.home, there) as pipeline:
        pipeline.wait_for("mid-epoch", notes)
        proxy.schedule.add(AWAY)
        (notes / "go-on").touch()
        pipeline.wait(lambda: NOT_STORED in log.read_text())
        proxy.schedule.clear()
        assert pipeline.end() == 0, pipeline.log
    assert {one.name.attempt for one in house.folder("away").checkpoints()} == {1}
    assert outcome(house, "away") == reference


def test_a_storage_that_is_slow(proxy: FaultProxy, house: House) -> None:
    """A third of a second for each answer: it takes longer, and what comes of it is the same.

    With its 1300 requests the pipeline takes some minutes so; at a second each, longer than the
    suite waits for anything.
    """
    reference = undisturbed(house)
    proxy.latency_s = 0.3
    with started(house.command("slow"), house.home, house.environment) as pipeline:
        assert pipeline.end() == 0, pipeline.log
    proxy.latency_s = 0.0
    assert {one.name.attempt for one in house.folder("slow").checkpoints()} == {1}
    assert outcome(house, "slow") == reference


def test_a_storage_that_stays_away_ends_the_run_which_goes_on_later(
    proxy: FaultProxy, house: House
) -> None:
    reference = undisturbed(house)
    notes = house.home / "notes"
    notes.mkdir()
    there = house.environment | {HOLD: "mid-epoch@0", NOTES: str(notes)}
    short = [*house.command("ended"), "--max-unsaved-s", "10"]
    with started(short, house.home, there) as pipeline:
        pipeline.wait_for("mid-epoch", notes)
        proxy.schedule.add(AWAY)
        (notes / "go-on").touch()
        assert pipeline.end() == 2, pipeline.log
    proxy.schedule.clear()
    newest = house.folder("ended").checkpoints()[-1]
    assert f"the last good one is {newest.name}. " in " ".join(pipeline.log.split())
    with started(house.command("ended"), house.home, house.environment) as pipeline:
        assert pipeline.end() == 0, pipeline.log
    assert outcome(house, "ended") == reference
