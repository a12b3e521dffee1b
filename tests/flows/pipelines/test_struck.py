"""Some rows of `make chaos`, on a disk and on S3: whole pipelines that are struck and compared."""

from __future__ import annotations

import os
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.pipeline import House, outcome
from tests.chaos.servers.failing_server import strike_server
from tests.chaos.servers.outages import EMBEDDED, Outage
from tests.chaos.strike import Fault, strike
from tests.marks import SLOW

pytestmark = pytest.mark.timeout(400)

S3 = pytest.mark.s3
FEW = [
    pytest.param(
        "local", Fault("the flow", "before the manifest"), id="disk, the flow", marks=SLOW
    ),
    pytest.param("s3", Fault("rank 1", "upload", rank=1), id="S3, a rank", marks=S3),
]


@pytest.fixture
def house(home: Path, environment: dict[str, str]) -> House:
    return House(home, environment, str(home / ".evertrain/runs"))


@pytest.fixture
def reference(house: House, undisturbed: str) -> dict[str, Any]:
    return outcome(house, "undisturbed")


@pytest.mark.promise("exact-pipeline")
@pytest.mark.parametrize(("storage", "fault"), FEW)
def test_a_pipeline_that_is_struck_ends_as_if_it_was_not(
    house: House,
    reference: dict[str, Any],
    storage: str,
    fault: Fault,
    request: pytest.FixtureRequest,
) -> None:
    if storage == "s3":
        bucket = request.getfixturevalue("object_store")
        environment = house.environment | {
            name: value for name, value in os.environ.items() if name.startswith("AWS_")
        }
        house = replace(house, storage=f"{bucket}/{uuid.uuid4().hex}", environment=environment)
    recovery = strike(house, fault, f"struck-{uuid.uuid4().hex[:8]}", reference)
    assert recovery.struck
    assert recovery.faults == []


@SLOW
@pytest.mark.promise("prefect-away", "prefect-stays-away")
def test_a_pipeline_whose_prefect_server_is_killed_while_it_trains_ends_in_time(
    house: House, reference: dict[str, Any]
) -> None:
    """The others of this kind are rows of `make chaos`, which look at the next command, too."""
    recovery = strike_server(
        house,
        Outage(EMBEDDED, "mid-epoch"),
        f"struck-{uuid.uuid4().hex[:8]}",
        reference,
        is_repaired=False,
    )
    assert recovery.faults == []
