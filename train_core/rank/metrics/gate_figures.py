"""The figure of a gate: the challenger beside the champion, on the rows that both scored.

It has a white background of its own, so that it can be read on a light and on a dark page.
"""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.figure import Figure

from train_core.policy.champion.gate_decision import Score
from train_core.rank.metrics.figures import BAD, GOOD, GREY, new_figure, plain
from train_core.results import Decision, GateResult

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MAX_CLASSES = 30
_WIDTH, _TITLE_CHARS = 10, 90
"""Inches, and what fits in them."""


def champion_and_challenger(result: GateResult) -> Figure | None:
    """The improvement, the recall of each class and the costs; None if nothing was compared."""
    evidence = result.decision.evidence
    champion, challenger = evidence.champion, evidence.challenger
    if champion is None or evidence.improvement is None:
        return None
    classes = _classes(champion, challenger)
    figure = new_figure(_WIDTH, max(4.5, 1.8 + 0.36 * len(classes)), layout="constrained")
    title = plain(result.summary, 4 * _TITLE_CHARS)
    figure.suptitle("\n".join(textwrap.wrap(title, _TITLE_CHARS)), fontsize="medium")
    parts = [figure]
    if classes:
        parts = list(figure.subfigures(1, 2, squeeze=False, width_ratios=[1.1, 1])[0])
    above, below = parts[0].subplots(2, 1)
    _draw_improvement(above, result.decision)
    _draw_costs(below, champion, challenger, result.decision.rules.max_latency_ratio)
    if classes:
        _draw_recalls(parts[1].subplots(), classes, champion, challenger)
    return figure


def _draw_improvement(axes: Axes, decision: Decision) -> None:
    """The interval of the improvement, and the bound that all of it has to be above."""
    found, compared = decision.evidence.improvement, decision.comparison
    assert found
    bound = decision.rules.min_improvement
    is_enough = found.low > bound
    axes.errorbar(
        [found.value],
        [0],
        xerr=[[found.value - found.low], [found.high - found.value]],
        fmt="o",
        capsize=6,
        color=GOOD if is_enough else BAD,
    )
    axes.axvline(bound, color=GREY, linestyle="--")
    axes.set(
        yticks=[],
        ylim=(-1, 1),
        title=f"improvement of {plain(decision.metric)}, {compared.num_rows:,} rows",
        xlabel=f"{compared.confidence:.0%} interval, which has to be above {bound:g} (dashed)",
    )
    axes.margins(x=0.15)


def _draw_costs(axes: Axes, champion: Score, challenger: Score, limit: float | None) -> None:
    """The challenger's costs as fractions of the champion's."""
    costs = {
        "ms for a row": (challenger.row_ms, champion.row_ms),
        "ms for a batch": (challenger.batch_ms, champion.batch_ms),
        "MB of weights": (challenger.size_bytes / 1e6, champion.size_bytes / 1e6),
    }
    ratios = [now / before if before else np.nan for now, before in costs.values()]
    names = [f"{name}\n{before:.4g} → {now:.4g}" for name, (now, before) in costs.items()]
    places = range(len(costs))
    axes.barh(places, ratios, height=0.5, color=GREY)
    axes.axvline(1, color="black", linewidth=1)
    if limit is not None:
        axes.axvline(limit, color=BAD, linestyle="--", label="the most that its ms may be")
        axes.legend(fontsize="small")
    axes.set_yticks(places, names)
    axes.invert_yaxis()
    axes.set(xlabel="times the champion's")
    axes.grid(axis="x", alpha=0.3)


def _classes(champion: Score, challenger: Score) -> list[str]:
    """The classes that both have samples of, those whose recall fell most first."""
    drops = {
        name: before - now
        for name, now in challenger.recalls.items()
        if now is not None and (before := champion.recalls.get(name)) is not None
    }
    return sorted(drops, key=drops.__getitem__, reverse=True)[:_MAX_CLASSES]


def _draw_recalls(axes: Axes, classes: list[str], champion: Score, challenger: Score) -> None:
    places = np.arange(len(classes))
    for offset, label, color, score in (
        (-0.2, "champion", GREY, champion),
        (0.2, "challenger", GOOD, challenger),
    ):
        values = [score.recalls[name] or 0.0 for name in classes]
        axes.barh(places + offset, values, height=0.38, label=label, color=color)
    axes.set_yticks(places, [plain(name) for name in classes])
    axes.invert_yaxis()
    axes.set(xlim=(0, 1), title="recall of each class, the largest fall first")
    axes.grid(axis="x", alpha=0.3)
    axes.figure.legend(loc="outside lower center", ncols=2)
