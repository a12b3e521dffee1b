"""Curves of a run as Mermaid charts, which Prefect's UI draws in Markdown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from train_core.storage.journal import Entry, read_segments
from train_core.storage.run_folder import RunFolder

MAX_POINTS = 60
MAX_CURVES = 8

Point = tuple[int, float]


def committed_entries(folder: RunFolder) -> Iterable[Entry]:
    """The journal that the newest checkpoint covers; nothing if there is no checkpoint."""
    checkpoints = folder.checkpoints()
    if not checkpoints:
        return ()
    return read_segments(folder.store, checkpoints[-1].manifest.journal)


def curves(entries: Iterable[Entry]) -> dict[str, list[Point]]:
    """The finite points (step, value) of each metric."""
    found: defaultdict[str, list[Point]] = defaultdict(list)
    for entry in entries:
        for name, value in entry.metrics.items():
            if value is not None:
                found[name].append((entry.step, value))
    return dict(found)


def charts(points: dict[str, list[Point]]) -> str:
    """A Mermaid chart for each metric with two points or more, the first MAX_CURVES by name."""
    drawn = [name for name in sorted(points) if len(points[name]) > 1][:MAX_CURVES]
    return "\n\n".join(chart(name, points[name]) for name in drawn)


def chart(name: str, points: Sequence[Point]) -> str:
    """One metric over the steps, thinned to MAX_POINTS."""
    shown = thinned(points)
    values = [value for _, value in shown]
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or 0.5
    return "\n".join(
        [
            "```mermaid",
            "xychart-beta",
            f'  title "{name}"',
            f'  x-axis "step" {shown[0][0]} --> {shown[-1][0]}',
            f"  y-axis {low - margin:.6f} --> {high + margin:.6f}",
            f"  line [{', '.join(f'{value:.6f}' for value in values)}]",
            "```",
        ]
    )


def thinned(points: Sequence[Point]) -> list[Point]:
    """At most MAX_POINTS of the points, evenly taken, the first and the last among them."""
    if len(points) <= MAX_POINTS:
        return list(points)
    last = len(points) - 1
    return [points[round(k * last / (MAX_POINTS - 1))] for k in range(MAX_POINTS)]
