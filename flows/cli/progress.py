"""Shows in the terminal where a pipeline is."""

from __future__ import annotations

import time
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from flows.timing import TIMING
from tasks.session import Session
from tasks.ticker import Ticker
from train_core.client.live import Live, LiveReader
from train_core.storage.run_folder import RunFolder


class TerminalProgress:
    """The stage and the training's position: a bar on a terminal, plain lines elsewhere.

    Use it as a context manager around the flow. `plain` forces lines on a terminal too.
    """

    def __init__(self, session: Session, console: Console, *, plain: bool) -> None:
        self._session = session
        self._reader = LiveReader(RunFolder(session.request.storage, session.request.run))
        self._view = _Lines(console) if plain or not console.is_terminal else _Bar(console)
        self._ticker = Ticker(self._tick, TIMING.bar_interval_s)

    def __enter__(self) -> Self:
        self._view.open()
        self._ticker.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._ticker.__exit__(kind)
        self._view.close()

    def _tick(self) -> None:
        stages = list(self._session.stages)
        self._view.show(stages, self._reader.read() if stages[-1] == "train" else None)


class _Lines:
    """A line for each stage that begins, and one now and then while training."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._num_shown = 0
        self._last_s = 0.0

    def open(self) -> None:
        self._last_s = time.monotonic()

    def close(self) -> None:
        pass

    def show(self, stages: list[str], live: Live | None) -> None:
        # A stage may begin and end between two ticks.
        for stage in stages[self._num_shown :]:
            self._console.print(stage, highlight=False)
        self._num_shown = len(stages)
        if live and time.monotonic() - self._last_s >= TIMING.line_interval_s:
            self._last_s = time.monotonic()
            self._console.print(f"  {live}", highlight=False, soft_wrap=True)


class _Bar:
    """One bar that stays at the bottom of the terminal."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TextColumn("{task.fields[live]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._task: TaskID = self._progress.add_task("prepare", total=None, live="")
        self._stage = "prepare"

    def open(self) -> None:
        self._progress.start()

    def close(self) -> None:
        self._progress.stop()

    def show(self, stages: list[str], live: Live | None) -> None:
        stage = stages[-1]
        if live:
            self._progress.update(
                self._task, description=stage, total=100, completed=live.percent, live=str(live)
            )
        elif stage != self._stage:
            status = "waiting for the training" if stage == "train" else ""
            self._progress.update(self._task, description=stage, total=None, live=status)
        self._stage = stage
