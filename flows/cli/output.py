"""How the list-like commands print: a table for people, JSON for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table

from tasks.report.numbers import number

Row = dict[str, Any]

WIDE = 240
DIFFERENT = 1
"""The exit code of a comparison that found a difference, as diff(1) has it."""


def say(text: str) -> None:
    """A line on stdout as it is: no wrapping, no colours."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def print_rows(rows: Sequence[Row], *, as_json: bool, empty: str) -> None:
    """Print the rows as a table or as a JSON list; `empty` instead of a table without rows."""
    if as_json:
        say(json.dumps(rows, indent=1))
        return
    # In a file or a pipe a row is one line, however long.
    console = Console(width=None if sys.stdout.isatty() else WIDE)
    if not rows:
        console.print(empty, highlight=False, soft_wrap=True)
        return
    columns = list(dict.fromkeys(name for row in rows for name in row))
    table = Table()
    for position, column in enumerate(columns):
        table.add_column(column, no_wrap=position == 0, overflow="fold")
    for row in rows:
        table.add_row(*(number(row.get(name)) for name in columns))
    console.print(table)


def print_mapping(mapping: dict[str, Any], *, as_json: bool) -> None:
    """Print one thing's properties as a grid or as a JSON object."""
    if as_json:
        say(json.dumps(mapping, indent=1))
        return
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="bold")
    grid.add_column(overflow="fold")
    for name, value in mapping.items():
        shown = json.dumps(value) if isinstance(value, (dict, list)) else number(value)
        grid.add_row(name, shown)
    Console(width=None if sys.stdout.isatty() else WIDE).print(grid)
