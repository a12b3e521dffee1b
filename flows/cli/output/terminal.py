"""All output of commands to the terminal goes through this module.

What is shown may come from a run folder that somebody else wrote, or from an argument. So control
characters are shown as escapes, markup of rich is plain text, secrets in addresses are masked, and
nothing is longer than a person reads (`train_core/text/shown_text.py`). JSON for programs is not
cut.
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import IO, Literal, Self, TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    track,
)
from rich.table import Table
from rich.text import Text

from train_core.policy.logins import hide_secrets
from train_core.text.log_lines import WARNING
from train_core.text.shown_text import shown

MOST_IN_A_CELL = 1_000
MOST_ROWS = 10_000
MOST_COLUMNS = 40
_WIDE = MOST_COLUMNS * MOST_IN_A_CELL
T = TypeVar("T")


def say(*lines: str) -> None:
    """Lines on stdout, without wrapping and colours."""
    _write(sys.stdout, lines)


def say_json(value: object) -> None:
    """A value as JSON on stdout, whole; it consists of printable ASCII characters."""
    sys.stdout.write(json.dumps(hide_secrets(value), indent=1) + "\n")
    sys.stdout.flush()


def discard_output() -> None:
    """Let what is left for stdout go nowhere: Python would complain of it at its end."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def complain(message: str) -> None:
    """A line on stderr that begins with the program's name."""
    _write(sys.stderr, [f"evertrain: {' '.join(message.split())}"])


@contextmanager
def warnings_shown() -> Iterator[None]:
    """Let what evertrain logs inside the block go through here: a line on stderr for each warning.

    Python and Prefect would print it as it is. Where Prefect's settings silence it, it is not
    shown.
    """
    loggers = [
        logging.getLogger(name) for name in ("evertrain_flows", "evertrain_tasks", "train_core")
    ]
    handler, propagated = _Warnings(logging.WARNING), [one.propagate for one in loggers]
    for one in loggers:
        one.addHandler(handler)
        one.propagate = False
    try:
        yield
    finally:
        for one, before in zip(loggers, propagated, strict=True):
            one.removeHandler(handler)
            one.propagate = before


class _Warnings(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        levels = [one.level for one in logging.getLogger().handlers]
        if not levels or record.levelno >= min(levels):
            _write(sys.stderr, [f"{WARNING}{' '.join(record.getMessage().split())}"])


def say_if_watched(line: str) -> None:
    """A line on stderr if that is a terminal."""
    if sys.stderr.isatty():
        _write(sys.stderr, [line])


def agrees(question: str) -> bool:
    """Whether the answer on stdin is yes; no answer is no."""
    try:
        return input(f"{shown(question)} [y/N] ").lower() in ("y", "yes")
    except EOFError:
        return False


def make_printable() -> None:
    """Let a terminal of few characters show the others as escapes, in place of an error."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


class Screen:
    """Stdout, or stderr, with tables, colours and bars where it is a terminal."""

    def __init__(
        self,
        file: IO[str] | None = None,
        *,
        to_stderr: bool = False,
        quiet: bool = False,
        is_terminal: bool | None = None,
    ) -> None:
        stream = file or (sys.stderr if to_stderr else sys.stdout)
        watched = stream.isatty() if is_terminal is None else is_terminal
        self._console = Console(
            file=stream,
            quiet=quiet,
            # In a file or a pipe a row is one line, however long.
            width=None if watched else _WIDE,
            force_terminal=is_terminal,
            markup=False,
            emoji=False,
            highlight=False,
        )

    @property
    def is_terminal(self) -> bool:
        """Whether somebody watches."""
        return self._console.is_terminal

    def line(self, text: str, style: str = "") -> None:
        """A line, however long: addresses are there to be copied."""
        self._console.print(Text(shown(text), style), soft_wrap=True)

    def table(
        self,
        headings: Sequence[str],
        rows: Iterable[Sequence[str]],
        *,
        title: str = "",
        highlighted: int | None = None,
        right: bool = False,
    ) -> None:
        """A table whose first column is not wrapped; `right`: the others are numbers."""
        columns, rows = headings[:MOST_COLUMNS], list(rows)
        table = Table(title=_cell(title) if title else None, title_justify="left")
        for position, heading in enumerate(columns):
            is_first = position == 0
            justify: Literal["left", "right"] = "right" if right and not is_first else "left"
            table.add_column(_cell(heading), justify=justify, no_wrap=is_first, overflow="fold")
        for position, row in enumerate(rows[:MOST_ROWS]):
            style = "bold green" if position == highlighted else ""
            table.add_row(*map(_cell, row[:MOST_COLUMNS]), style=style)
        self._console.print(table)
        self._say_left_out(len(headings) - len(columns), "columns")
        self._say_left_out(len(rows) - MOST_ROWS, "rows")

    def grid(self, rows: Iterable[tuple[str, str]]) -> None:
        """Names, and what each of them is."""
        rows = list(rows)
        grid = Table.grid(padding=(0, 2))
        grid.add_column(style="bold")
        grid.add_column(overflow="fold")
        for row in rows[:MOST_ROWS]:
            grid.add_row(*map(_cell, row))
        with self._console.capture() as printed:
            self._console.print(grid)
        # rich fills each line up to the length of the longest one.
        for line in printed.get().splitlines():
            self._console.file.write(f"{line.rstrip()}\n")
        self._say_left_out(len(rows) - MOST_ROWS, "entries")

    def following(self, items: Iterator[T], title: str, total: int | None = None) -> Iterable[T]:
        """The items, while a bar shows how many there were, of `total` if that is known."""
        return track(items, shown(title), total=total, console=self._console)

    def _say_left_out(self, count: int, what: str) -> None:
        if count > 0:
            self.line(f"… and {count} more {what}, which are not shown")


class Bars:
    """Bars at the bottom of a screen; use it as a context manager.

    `counts`: they show how many of how many; else a text beside the bar. `stays`: the last frame
    stays when the block ends.
    """

    def __init__(self, screen: Screen, *, counts: bool, stays: bool, disable: bool = False) -> None:
        title = TextColumn("{task.description}", style="" if counts else "bold", markup=False)
        columns: tuple[ProgressColumn, ...] = (
            (title, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
            if counts
            else (
                title,
                BarColumn(bar_width=24),
                TextColumn("{task.fields[beside]}", markup=False),
                TimeElapsedColumn(),
            )
        )
        self._progress = Progress(
            *columns,
            console=screen._console,  # noqa: SLF001 (a bar is a part of its screen)
            transient=not stays,
            disable=disable,
        )

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def add(self, title: str, total: int | None = None, *, starts: bool = True) -> int:
        """Another bar."""
        return self._progress.add_task(shown(title), total=total, start=starts, beside="")

    def start(self, bar: int) -> bool:
        """Let the bar's clock run; False if it runs already."""
        if self._progress.tasks[bar].started:
            return False
        self._progress.start_task(TaskID(bar))
        return True

    def update(
        self,
        bar: int,
        title: str | None = None,
        *,
        total: int | None = None,
        done: float | None = None,
        beside: str = "",
    ) -> None:
        """Show how much is done; without a total, that something goes on."""
        self._progress.update(
            TaskID(bar),
            description=None if title is None else shown(title),
            total=total,
            completed=done,
            beside=shown(beside),
        )


def _write(stream: IO[str], lines: Iterable[str]) -> None:
    stream.write("".join(f"{shown(line)}\n" for line in lines))
    stream.flush()


def _cell(text: str) -> Text:
    return Text(shown(text, MOST_IN_A_CELL))
