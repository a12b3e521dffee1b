"""Whole pipelines whose MLflow server is down, slow or broken: shown as if it had not been."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.pipeline import House, Started, started
from tests.chaos.servers.servers import OwnMlflow
from tests.chaos.standing import HOLD, NOTES
from tests.flows.conftest import isolated
from tests.flows.mlflow_side import shown_at
from tests.storage.doubles.fault_proxy import Fault, FaultProxy, Kind

# A server that was restarted is another process; it ends with its fixture.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(500), pytest.mark.leaves]

BROKEN = Fault(Kind.REFUSE, times=math.inf, status="500 Internal Server Error", body=b"broken")
SLOW_S = 10.0


@dataclass
class Tracked:
    """Pipelines whose MLflow is behind a proxy."""

    house: House
    proxy: FaultProxy
    uri: str

    def directly(self) -> Tracked:
        """Pipelines that reach the server without the proxy."""
        environment = self.house.environment | {"MLFLOW_TRACKING_URI": self.uri}
        return replace(self, house=replace(self.house, environment=environment))

    def shown(self, run: str) -> dict[str, Any]:
        return shown_at(self.uri, self.house.folder(run).url)

    def start(self, run: str, stack: ExitStack) -> tuple[Started, Path]:
        """A pipeline that is held in the middle of an epoch, and where its notes are."""
        notes = self.house.home / f"notes-{run}"
        notes.mkdir()
        there = self.house.environment | {HOLD: "mid-epoch@0", NOTES: str(notes)}
        found = stack.enter_context(started(self.house.command(run), self.house.home, there))
        return found, notes

    def whole(self, run: str, at_stage: Callable[[str], None]) -> str:
        """A pipeline from its start to its end, `at_stage` called on its way; what it said."""
        at_stage("start")
        with ExitStack() as stack:
            pipeline, notes = self.start(run, stack)
            pipeline.wait_for("mid-epoch", notes)
            at_stage("mid-epoch")
            (notes / "go-on").touch()
            pipeline.wait_for("evaluation", notes)
            at_stage("evaluation")
            assert pipeline.end() == 0, pipeline.log
            return pipeline.log


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnMlflow]:
    with OwnMlflow(tmp_path_factory.mktemp("server")) as found:
        yield found


@pytest.fixture(scope="module")
def tracked(server: OwnMlflow, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracked]:
    home = tmp_path_factory.mktemp("tracked")
    with FaultProxy(server.url) as proxy:
        environment = isolated(home) | {"MLFLOW_TRACKING_URI": proxy.url}
        house = House(home, environment, str(home / ".evertrain/runs"))
        yield Tracked(house, proxy, server.url)


@pytest.fixture(autouse=True)
def mended(tracked: Tracked, server: OwnMlflow) -> Iterator[None]:
    """The server is well again after each test."""
    yield
    server.mend()
    tracked.proxy.schedule.clear()
    tracked.proxy.latency_s = 0


@pytest.fixture(scope="module")
def reference(tracked: Tracked) -> dict[str, Any]:
    tracked.whole("undisturbed", lambda _: None)
    return tracked.shown("undisturbed")


def test_nobody_listens_until_the_training_is_over(
    tracked: Tracked, server: OwnMlflow, reference: dict[str, Any]
) -> None:
    server.stop()

    def at(stage: str) -> None:
        if stage == "evaluation":
            server.mend()

    tracked.directly().whole("absent-at-first", at)
    # The pipeline may have ended before the server had begun.
    tracked.directly().house.mirror("absent-at-first")
    assert tracked.shown("absent-at-first") == reference


def test_nobody_listens_from_the_middle_to_the_end(
    tracked: Tracked, server: OwnMlflow, reference: dict[str, Any]
) -> None:
    def at(stage: str) -> None:
        if stage == "mid-epoch":
            server.stop()

    tracked.directly().whole("absent-at-last", at)
    server.mend()
    assert tracked.shown("absent-at-last") != reference
    tracked.directly().house.mirror("absent-at-last")
    assert tracked.shown("absent-at-last") == reference


def test_broken_until_the_training_is_over(tracked: Tracked, reference: dict[str, Any]) -> None:
    def at(stage: str) -> None:
        if stage == "start":
            tracked.proxy.schedule.add(BROKEN)
        if stage == "evaluation":
            tracked.proxy.schedule.clear()

    tracked.whole("broken-at-first", at)
    # It caught up by itself.
    assert tracked.shown("broken-at-first") == reference


def test_broken_from_the_middle_to_the_end(tracked: Tracked, reference: dict[str, Any]) -> None:
    def at(stage: str) -> None:
        if stage == "mid-epoch":
            tracked.proxy.schedule.add(BROKEN)

    tracked.whole("broken-at-last", at)
    assert tracked.shown("broken-at-last") != reference
    tracked.proxy.schedule.clear()
    for _ in range(2):
        tracked.house.mirror("broken-at-last")
        assert tracked.shown("broken-at-last") == reference


def test_ten_seconds_for_an_answer(tracked: Tracked, reference: dict[str, Any]) -> None:
    tracked.proxy.latency_s = SLOW_S
    tracked.whole("slow", lambda _: None)
    tracked.proxy.latency_s = 0
    tracked.house.mirror("slow")
    assert tracked.shown("slow") == reference
