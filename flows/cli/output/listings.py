"""How the list-like commands print: a table for people, JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from evertrain_flows.cli.output.terminal import Screen, say_json
from evertrain_tasks.report.numbers import number

Row = dict[str, Any]

DIFFERENT = 1
"""The exit code of a comparison that found a difference, as diff(1) has it."""


def print_rows(rows: Sequence[Row], *, as_json: bool, empty: str) -> None:
    """Print the rows as a table or as a JSON list; `empty` instead of a table without rows."""
    if as_json:
        say_json(rows)
        return
    screen = Screen()
    if not rows:
        screen.line(empty)
        return
    columns = list(dict.fromkeys(name for row in rows for name in row))
    screen.table(columns, [[number(row.get(name)) for name in columns] for row in rows])


def print_mapping(mapping: dict[str, Any], *, as_json: bool) -> None:
    """Print one thing's properties as a grid or as a JSON object."""
    if as_json:
        say_json(mapping)
        return
    Screen().grid((name, _in_short(value)) for name, value in mapping.items())


def _in_short(value: object) -> str:
    return json.dumps(value) if isinstance(value, (dict, list)) else number(value)
