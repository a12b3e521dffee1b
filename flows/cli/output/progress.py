"""Shows in the terminal where a pipeline is."""

from __future__ import annotations

import time
from typing import Self

from evertrain_flows.cli.output.terminal import Bars, Screen
from evertrain_flows.timing import TIMING
from evertrain_tasks.driver_session.session import Session
from evertrain_tasks.driver_session.ticker import Ticker
from train_core.client.live import Live, LiveReader
from train_core.storage.run_folder import RunFolder


class TerminalProgress:
    """The stage and the training's position: a bar on a terminal, plain lines elsewhere.

    Use it as a context manager around the flow. `plain` forces lines on a terminal too.
    """

    def __init__(self, session: Session, screen: Screen, *, plain: bool) -> None:
        self._session = session
        self._reader = LiveReader(RunFolder(session.request.storage, session.request.run))
        self._view = _Lines(screen) if plain or not screen.is_terminal else _Bar(screen)
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

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._num_shown = 0
        self._last_s = 0.0

    def open(self) -> None:
        self._last_s = time.monotonic()

    def close(self) -> None:
        pass

    def show(self, stages: list[str], live: Live | None) -> None:
        # A stage may begin and end between two ticks.
        for stage in stages[self._num_shown :]:
            self._screen.line(stage)
        self._num_shown = len(stages)
        if live and time.monotonic() - self._last_s >= TIMING.line_interval_s:
            self._last_s = time.monotonic()
            self._screen.line(f"  {live}")


class _Bar:
    """One bar that stays at the bottom of the terminal."""

    def __init__(self, screen: Screen) -> None:
        self._bars = Bars(screen, counts=False, stays=False)
        self._bar = self._bars.add("prepare")
        self._stage = "prepare"

    def open(self) -> None:
        self._bars.__enter__()

    def close(self) -> None:
        self._bars.__exit__()

    def show(self, stages: list[str], live: Live | None) -> None:
        stage = stages[-1]
        if live:
            self._bars.update(self._bar, stage, total=100, done=live.percent, beside=str(live))
        elif stage != self._stage:
            status = "waiting for the training" if stage == "train" else ""
            self._bars.update(self._bar, stage, beside=status)
        self._stage = stage
