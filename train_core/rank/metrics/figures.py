"""Figures of a run, drawn off-screen: curves over the steps, and confusion matrices.

Each has a white background, so that it can be read on a light and on a dark page.
"""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable, Sequence
from typing import Literal

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from train_core.policy.metric_names import (
    CHECKPOINT_BLOCKED_S,
    CHECKPOINT_WAITED_S,
    LEARNING_RATE,
    SAMPLES_PER_S,
    split_and_name,
)
from train_core.storage.objects.store import Store
from train_core.storage.records.journal import Entry, read_good_segments
from train_core.storage.run_folder import Commit
from train_core.text.shown_text import shown

GOOD, BAD, GREY = "#0072b2", "#d55e00", "#767676"
"""Colours that people who see few colours can tell apart."""
_MAX_CELLS_WITH_NUMBERS = 20
_MAX_CHARS = 60
_PANEL_HEIGHT = 3.0
"""In inches."""
_drawing = threading.Lock()
_drawn: dict[str, bytes] = {}


def curves_until(newest: Commit, store: Store) -> bytes:
    """The curves of a run up to its newest checkpoint, as a picture.

    Drawing takes a second; the run folder and MLflow get the same picture, drawn once.
    """
    with _drawing:
        if newest.digest not in _drawn:
            picture = png(curves(read_good_segments(store, newest.manifest.journal)))
            _drawn.clear()
            _drawn[newest.digest] = picture
        return _drawn[newest.digest]


def curves(entries: Iterable[Entry]) -> Figure:
    """A panel for each metric; `train/loss` and `validation/loss` share one."""
    panels: dict[str, dict[str, tuple[list[int], list[float]]]] = {}
    for entry in entries:
        for key, value in entry.metrics.items():
            split, name = split_and_name(key)
            steps, values = panels.setdefault(name, {}).setdefault(split, ([], []))
            steps.append(entry.step)
            values.append(np.nan if value is None else value)
    height = _PANEL_HEIGHT * max(1, len(panels))
    figure = new_figure(7, height)
    # Fixed margins, in inches: a computed layout would draw everything twice.
    figure.subplots_adjust(
        left=0.15, right=0.97, bottom=0.5 / height, top=1 - 0.2 / height, hspace=0.3
    )
    for number, (name, lines) in enumerate(sorted(panels.items()), start=1):
        axes = figure.add_subplot(len(panels), 1, number)
        for split, (steps, values) in sorted(lines.items()):
            axes.plot(
                steps, values, label=plain(split or name), marker="." if len(steps) < 50 else ""
            )
        axes.set(xlabel="step", ylabel=plain(name))
        axes.grid(alpha=0.3)
        axes.legend()
    return figure


def learning_rate(entries: Iterable[Entry]) -> Figure | None:
    """The learning rate by step; None if the journal has none."""
    rates = [(one.step, one.metrics.get(LEARNING_RATE)) for one in entries]
    found = [(step, rate) for step, rate in rates if rate is not None]
    if not found:
        return None
    figure = new_figure(7, _PANEL_HEIGHT, layout="constrained")
    axes = figure.add_subplot()
    axes.plot(*zip(*found, strict=True), color=GOOD, marker="." if len(found) < 50 else "")
    axes.set(xlabel="step", ylabel="learning rate")
    axes.grid(alpha=0.3)
    return figure


def throughput(entries: Iterable[Entry]) -> Figure | None:
    """Samples per second by step, over the seconds that checkpoints made the training wait."""
    rates: list[tuple[int, float]] = []
    stalls: list[tuple[int, float]] = []
    for one in entries:
        # A training function's steps are its reports, whose samples nobody counts.
        if SAMPLES_PER_S in one.rates:
            rates.append((one.step, one.rates[SAMPLES_PER_S]))
        stall_s = sum(
            one.rates.get(name, 0) for name in (CHECKPOINT_BLOCKED_S, CHECKPOINT_WAITED_S)
        )
        if stall_s:
            stalls.append((one.step, stall_s))
    if not rates:
        return None
    figure = new_figure(7, 2 * _PANEL_HEIGHT, layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    above.plot(*zip(*rates, strict=True), color=GOOD, marker="." if len(rates) < 50 else "")
    above.set(ylabel="samples/s", ylim=(0, None))
    total_s = sum(spent for _, spent in stalls)
    if stalls:
        below.stem(*zip(*stalls, strict=True), linefmt=BAD, markerfmt=" ", basefmt=" ")
    below.set(
        xlabel="step",
        ylabel="stall, s",
        ylim=(0, None),
        title=f"checkpoints made the training wait {total_s:.3g} s",
    )
    for axes in (above, below):
        axes.grid(alpha=0.3)
    return figure


def confusion_matrix(counts: Sequence[Sequence[int]], labels: Sequence[str], title: str) -> Figure:
    """Counts by true class (rows) and predicted class (columns), coloured by share of the row."""
    table = np.asarray(counts)
    shares = table / np.maximum(table.sum(axis=1, keepdims=True), 1)
    side = min(4 + 0.4 * len(labels), 20)
    figure = new_figure(side, side, layout="constrained")
    axes = figure.add_subplot()
    axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    axes.set(xlabel="predicted", ylabel="true", title=plain(title))
    labels = list(map(plain, labels))
    axes.set_xticks(range(len(labels)), labels, rotation=45, ha="right")
    axes.set_yticks(range(len(labels)), labels)
    if len(labels) <= _MAX_CELLS_WITH_NUMBERS:
        for (row, column), count in np.ndenumerate(table):
            color = "white" if shares[row, column] > 0.5 else "black"
            axes.text(column, row, str(count), ha="center", va="center", color=color)
    return figure


def png(figure: Figure) -> bytes:
    """The figure as a picture."""
    picture = io.BytesIO()
    figure.savefig(picture, format="png")
    return picture.getvalue()


def plain(text: str, max_chars: int = _MAX_CHARS) -> str:
    """A name in a figure, where dollars begin a formula, and `_` a name without a legend."""
    text = shown(text, max_chars).replace("$", r"\$")
    return f" {text}" if text.startswith("_") else text


def new_figure(width: float, height: float, layout: Literal["constrained"] | None = None) -> Figure:
    """An empty figure of that size in inches, on white: it may be shown on a dark page."""
    figure = Figure(figsize=(width, height), layout=layout, facecolor="white")
    # Not with pyplot, which would keep the figure in memory and may need a screen.
    FigureCanvasAgg(figure)
    return figure
