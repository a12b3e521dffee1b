"""The times of storage that the docs name are those of the code."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

from train_core.storage.objects.retry_policy import DEFAULT, SHORT
from train_core.timing import TIMING

DOCS = Path(__file__).parents[2] / "docs"
GROUPS = (getattr(TIMING, field.name) for field in fields(TIMING) if field.name != "restarts")
VALUES = {"RetryPolicy": DEFAULT, "SHORT": SHORT, "Timing": TIMING} | {
    type(group).__name__: group for group in GROUPS if is_dataclass(group)
}
NAMED = re.compile(r"([\d.]+) (?:s|times|attempts) \(`(\w+)\.(\w+)`")


@pytest.mark.parametrize(
    ("page", "fewest"),
    [("operations.md", 20), ("design/lease-and-fencing.md", 4), ("design/attach.md", 2)],
)
def test_a_time_beside_the_name_of_its_field_is_the_fields_value(page: str, fewest: int) -> None:
    named = NAMED.findall(" ".join((DOCS / page).read_text().split()))
    # Flows and tasks have a Timing, too.
    ours = [one for one in named if hasattr(VALUES.get(one[1]), one[2])]
    assert len(ours) >= fewest
    for number, owner, field in ours:
        assert float(number) == getattr(VALUES[owner], field), f"{owner}.{field}"
