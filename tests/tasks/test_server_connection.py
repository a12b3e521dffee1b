"""What is asked of Prefect's server, and shown there, while it is away and when it is back."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey
from prefect.settings import PREFECT_API_URL, temporary_settings

from evertrain_tasks.prefect_server.connection import BACK, LOST, ServerConnection
from evertrain_tasks.timing import TIMING
from tests.chaos.servers.switch import Switch, Way
from tests.marks import slow
from tests.waiting import wait_for

AWAY = [slow(Way.ANSWERS_500), slow(Way.ANSWERS_401), Way.SILENT]

# Prefect's threads and its server live as long as the tests.
pytestmark = pytest.mark.leaves


@pytest.fixture
def switch(shared_prefect: tuple[Path, str]) -> Iterator[Switch]:
    _, api = shared_prefect
    with (
        Switch(api) as switch,
        temporary_settings({PREFECT_API_URL: f"{switch.url}/api"}),
    ):
        yield switch


class Warnings(list[str]):
    """The warnings, and an event for each."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()

    def __call__(self, line: str) -> None:
        with self._changed:
            self.append(line)
            self._changed.notify_all()

    def wait_for(self, count: int) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self) >= count, 60), list(self)


def artifact(key: str, text: str) -> Callable[[SyncPrefectClient], object]:
    made = ArtifactCreate(type="markdown", key=key, data=text)
    return lambda client: client.create_artifact(made)


def shown(key: str) -> list[object]:
    with get_client(sync_client=True) as client:
        of_key = ArtifactFilter(key=ArtifactFilterKey(any_=[key]))
        return [one.data for one in client.read_artifacts(artifact_filter=of_key)]


@pytest.mark.promise("prefect-away")
@pytest.mark.parametrize("way", AWAY)
def test_a_lost_server_is_told_once_and_gets_what_it_missed(switch: Switch, way: Way) -> None:
    warnings, key = Warnings(), f"during-{way.name.lower().replace('_', '-')}"
    with ServerConnection(warnings) as server:
        server.show(key, artifact(key, "before"))
        # The first request to a server on a busy machine may take longer than its time-out.
        assert server.wait_until_shown(60)
        switch.turn(way)
        for text in ("first", "second"):
            server.show(key, artifact(key, text))
        warnings.wait_for(1)
        switch.turn(None)
        warnings.wait_for(2)
        assert server.wait_until_shown(60)
    assert warnings[0].startswith(LOST.partition("(")[0])
    assert warnings[1:] == [BACK]
    # Of what it missed the newest; twice, if an answer came after the time-out of its request.
    assert set(map(str, shown(key))) == {"before", "second"}
    # After the first request that failed, which may be a check, no artifact was tried.
    assert len([line for line in switch.schedule.hits if "/artifacts" in line]) <= 1


def test_a_connection_that_has_ended_leaves_no_socket_open(switch: Switch) -> None:
    def num_sockets() -> int:
        to = psutil.Process().net_connections("tcp4")
        return sum(one.raddr == ("127.0.0.1", urlsplit(switch.url).port) for one in to)

    def ask_at_the_end(client: SyncPrefectClient) -> str:
        server.close()
        assert num_sockets()
        return client.api_version()

    warnings = Warnings()
    with ServerConnection(warnings) as server:
        assert server.wait_for_answer()
        # The end waits for no request and cuts none off: the last one closes the client.
        assert server.ask(ask_at_the_end)
    wait_for(lambda: not num_sockets(), 10)
    # A thread that goes on for longer has a client of its own.
    assert server.ask(lambda client: client.api_version())
    assert not num_sockets()
    assert not warnings


@pytest.mark.parametrize("way", AWAY)
def test_a_question_costs_seconds_once_and_then_nothing(switch: Switch, way: Way) -> None:
    with closing(ServerConnection(Warnings())) as server:
        assert server.ask(lambda client: client.api_version())
        switch.turn(way)
        begin = time.monotonic()
        assert server.ask(lambda client: client.api_version()) is None
        # A request that waited for its answer took its time-out, and no second one was sent.
        assert (time.monotonic() - begin >= TIMING.request_timeout_s) is (way is Way.SILENT)
        assert server.ask(lambda client: client.api_version()) is None
        assert len(switch.schedule.hits) == 1
        switch.turn(None)
        assert server.check()
        assert server.ask(lambda client: client.api_version())


def test_what_the_server_refuses_is_told_and_not_tried_again(switch: Switch) -> None:
    warnings = Warnings()
    with closing(ServerConnection(warnings)) as server:
        server.show(
            "Bad Key!", lambda client: client.request("POST", "/artifacts/", json={"key": "!"})
        )
        assert len(warnings) == 1
        assert warnings[0].startswith("Bad Key! is not shown in Prefect: HTTP 422")
        assert server.wait_until_shown(0)
        assert switch.schedule.hits == []


@pytest.mark.slow
def test_without_any_server_there_is_nothing_to_wait_for() -> None:
    warnings = Warnings()
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}),
        closing(ServerConnection(warnings)) as server,
    ):
        assert not server.wait_for_answer()
        assert not server.wait_until_shown(0)
    assert [line.partition(" (")[0] for line in warnings] == [LOST.partition(" (")[0]]
