"""Automations from a file that is applied twice, and the messages that they send."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_HOME,
    PREFECT_LOCAL_STORAGE_PATH,
    temporary_settings,
)
from prefect.states import Completed, Failed, Paused, Running, State

from benchmarks.services import prefect_server
from evertrain_flows.automations import apply_file
from evertrain_flows.flow_runs.states import EndName, naming_its_end
from tests.flows.conftest import ROOT
from tests.flows.deployment.deployed import AUTOMATIONS, filtered, wait_for
from tests.flows.test_results import REPORT
from train_core.errors import ConfigError, DataError, StageError, UserCodeError

pytestmark = pytest.mark.timeout(300)

NOTIFICATIONS = ROOT / "deployments/notifications.yaml"
PLAIN = {EndName.COMPLETED}
"""An end without a gate, of which no file of ours tells."""


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    home = tmp_path_factory.mktemp("notifications")
    settings = {PREFECT_HOME: home, PREFECT_LOCAL_STORAGE_PATH: home / "results"}
    with (
        prefect_server(home) as url,
        temporary_settings({PREFECT_API_URL: url, **settings}),
    ):
        yield url


@pytest.fixture
def posts() -> Iterator[tuple[str, list[dict[str, str]]]]:
    """The address of a server that messages are posted to, and the messages."""
    received: list[dict[str, str]] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """The test tells what is missing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/", received
        server.shutdown()


def ended_as(client: SyncPrefectClient, deployment: Any, end: State[Any]) -> None:
    flow_run = client.create_flow_run_from_deployment(deployment, name=f"night-{end.name}")
    for state in (Running(), end):
        client.set_flow_run_state(flow_run.id, state, force=True)


def end_of(name: str) -> State[Any]:
    if name == "Suspended":
        return Paused(name=name, message="about Suspended", timeout_seconds=3600)
    is_failed = name in ("Failed", "BadData", "BadInput", "BadCode", "Diverged", "Busy")
    return (Failed if is_failed else Completed)(name=name, message=f"about {name}")


@pytest.mark.slow
@pytest.mark.promise("notifications", "named-endings")
def test_each_ending_sends_its_message_once_though_the_files_were_applied_twice(
    api: str, posts: tuple[str, list[dict[str, str]]], tmp_path: Path
) -> None:
    url, received = posts
    file = tmp_path / "notifications.yaml"
    found = yaml.safe_load(NOTIFICATIONS.read_text())
    found["blocks"] = [
        {
            "name": "evertrain-news",
            "type": "custom-webhook",
            "data": {
                "name": "news",
                "url": url,
                "json_data": {"subject": "{{subject}}", "body": "{{body}}"},
            },
        }
    ]
    file.write_text(yaml.safe_dump(found))
    names = []
    for _ in range(2):
        told = [*apply_file(str(AUTOMATIONS)), *apply_file(str(file))]
        names.append(sorted(one["name"] for one in filtered(api, "automations")))
    assert all(line.endswith((": updated", ": saved")) for line in told), told
    assert names[0] == names[1]
    assert len(set(names[1])) == len(names[1]) == 8
    ends = [*(set(EndName) - PLAIN), "Suspended"]
    with get_client(sync_client=True) as client:
        flow = client.create_flow_from_name("retrain")
        deployment = client.create_deployment(flow, name="nightly")
        for end in [EndName.COMPLETED, *ends]:
            ended_as(client, deployment, end_of(end))
    wait_for(lambda: len(received) >= len(ends), tmp_path, 120)
    assert sorted(one["subject"] for one in received) == sorted(f"night-{n}: {n}" for n in ends)
    for one in received:
        name = one["subject"].rpartition(" ")[2]
        assert one["body"].startswith(f"about {name}\n"), one


def delivered(api: str) -> list[dict[str, Any]]:
    """The automations of the delivered file that the server has, also doubles."""
    names = {one["name"] for one in yaml.safe_load(AUTOMATIONS.read_text())["automations"]}
    return [one for one in filtered(api, "automations") if one["name"] in names]


@pytest.mark.slow
def test_a_double_is_deleted_and_a_paused_one_stays_paused(api: str) -> None:
    apply_file(str(AUTOMATIONS))
    first, second = delivered(api)
    with httpx.Client(base_url=api) as client:
        client.patch(f"/automations/{first['id']}", json={"enabled": False}).raise_for_status()
        made = {key: second[key] for key in ("name", "trigger", "actions")}
        client.post("/automations/", json=made).raise_for_status()
    assert len(delivered(api)) == 3
    told = apply_file(str(AUTOMATIONS))
    assert f"automation {second['name']}: updated and its doubles deleted" in told
    assert len(delivered(api)) == 2
    enabled = {one["name"]: one["enabled"] for one in delivered(api)}
    assert enabled == {first["name"]: False, second["name"]: True}


@pytest.mark.slow
@pytest.mark.promise("named-endings")
@pytest.mark.parametrize(
    ("outcome", "name", "says"),
    [
        (REPORT, "Completed", f"is the best checkpoint of run {REPORT.run}"),
        (DataError("a.parquet is torn"), "BadData", "a.parquet is torn"),
        (UserCodeError("train", "KeyError: 'lr'", "trace"), "BadCode", "train: KeyError: 'lr'"),
        (StageError("train", "Ray did not start"), "Failed", "train: Ray did not start"),
    ],
    ids=lambda one: repr(one)[:30],
)
def test_the_server_has_the_name_and_the_message_and_the_flow_its_result(
    api: str, outcome: Any, name: str, says: str
) -> None:
    @flow(name="a-night", persist_result=True, result_serializer="json")
    @naming_its_end
    def night() -> Any:
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    state: Any = night(return_state=True)
    shown = filtered(api, "flow_runs", sort="START_TIME_DESC", limit=1)[0]["state"]
    assert (shown["name"], shown["type"]) == (name, str(state.type.value))
    assert shown["message"].endswith(says)
    if isinstance(outcome, Exception):
        with pytest.raises(type(outcome), match=says):
            night()
    else:
        assert night() == outcome


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("automations: []", "automations: List should have at least 1 item"),
        ("{", "cannot be read"),
        (
            "blocks: [{name: a, type: pigeon, data: {}}]\nautomations: [{name: x}]",
            "block 'a' has the unknown type 'pigeon'",
        ),
        (
            (
                "blocks: [{name: a, type: slack-webhook, data: {url: '${NO_SUCH_VARIABLE}'}}]\n"
                "automations: [{name: x}]"
            ),
            "the environment has no NO_SUCH_VARIABLE, which the file asks for",
        ),
        (
            (
                "automations: [{name: x, trigger: {type: event, posture: Reactive}, "
                "actions: [{type: send-notification, block: a, subject: s, body: b}]}]"
            ),
            "automation 'x' names no block of it: 'a'",
        ),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_a_line(
    content: str, message: str, tmp_path: Path
) -> None:
    file = tmp_path / "x.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=f"^{file}") as raised:
        apply_file(str(file))
    assert message in str(raised.value)
    assert "\n" not in str(raised.value).strip()
