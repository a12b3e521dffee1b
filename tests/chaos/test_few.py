"""Some rows of `make chaos`, on a disk and on S3: whole pipelines that are struck and compared."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import pytest

from benchmarks.services import prefect_server
from tests.chaos.failing_server import strike_server
from tests.chaos.outages import EMBEDDED, Outage
from tests.chaos.pipeline import House, undisturbed
from tests.chaos.strike import Fault, strike
from tests.flows.conftest import isolated

pytestmark = pytest.mark.timeout(400)

S3 = pytest.mark.s3
FEW = [
    pytest.param("local", Fault("the flow", "before the manifest"), id="disk, the flow"),
    pytest.param("s3", Fault("rank 1", "upload", rank=1), id="S3, a rank", marks=S3),
]


@pytest.fixture(scope="module")
def house_on(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], House]]:
    """The house whose run folders are on that storage."""
    home = tmp_path_factory.mktemp("chaos")

    @cache
    def on(storage: str) -> House:
        url = str(home / ".evertrain/runs")
        if storage == "s3":
            url = f"{request.getfixturevalue('object_store')}/{uuid.uuid4().hex}"
        # The address of the server is in the environment by now.
        return House(home, isolated(home) | {"PREFECT_API_URL": api}, url)

    # For all of them: a command that starts its own takes ten seconds longer.
    with prefect_server(home) as api:
        yield on


@pytest.fixture(scope="module")
def reference(house_on: Callable[[str], House]) -> dict[str, Any]:
    return undisturbed(house_on("local"))


@pytest.mark.promise("exact-pipeline")
@pytest.mark.parametrize(("storage", "fault"), FEW)
def test_a_pipeline_that_is_struck_ends_as_if_it_was_not(
    house_on: Callable[[str], House],
    reference: dict[str, Any],
    storage: str,
    fault: Fault,
) -> None:
    recovery = strike(house_on(storage), fault, f"struck-{uuid.uuid4().hex[:8]}", reference)
    assert recovery.struck
    assert recovery.faults == []


@pytest.mark.promise("prefect-away", "prefect-stays-away")
def test_a_pipeline_whose_prefect_server_is_killed_while_it_trains_ends_in_time(
    house_on: Callable[[str], House], reference: dict[str, Any]
) -> None:
    """The others of this kind are rows of `make chaos`, which look at the next command, too."""
    recovery = strike_server(
        house_on("local"),
        Outage(EMBEDDED, "mid-epoch"),
        f"struck-{uuid.uuid4().hex[:8]}",
        reference,
        is_repaired=False,
    )
    assert recovery.faults == []
