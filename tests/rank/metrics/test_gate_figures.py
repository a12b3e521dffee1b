"""The figure of a challenger beside the champion."""

from __future__ import annotations

import io

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from tests.champion.samples import decision
from train_core.policy.champion.gate_decision import Evidence, Improvement, Score
from train_core.policy.champion.gate_options import GateOptions
from train_core.rank.metrics.figures import png
from train_core.rank.metrics.gate_figures import champion_and_challenger
from train_core.results import GateResult

CHAMPION = Score(0.9, {"cat": 0.9, "a$b$c": 0.8, "_dog": 1.0, "none": None}, 1.0, 20.0, 10**7)
CHALLENGER = Score(0.8, {"cat": 0.7, "a$b$c": 0.9, "_dog": 0.9, "none": 0.5}, 1.5, 20.0, 10**7)
FOUND = Improvement(-0.1, -0.12, -0.08)


def drawn(champion: Score | None = CHAMPION, challenger: Score = CHALLENGER) -> Figure | None:
    evidence = Evidence(challenger, champion, FOUND if champion else None)
    made = decision(champion=1, evidence=evidence, rules=GateOptions(max_latency_ratio=2.0))
    return champion_and_challenger(GateResult(decision=made, decision_uri="run/decisions/x.json"))


def panels(figure: Figure) -> dict[str, list[str]]:
    """The labels of each panel's bars, by the beginning of its title or of its label below."""
    return {
        (axes.get_title() or axes.get_xlabel()).split(" of ")[0]: [
            label.get_text().splitlines()[0] for label in axes.get_yticklabels()
        ]
        for axes in figure.get_axes()
    }


@pytest.mark.promise("figures")
def test_the_figure_is_dark_on_a_white_of_its_own() -> None:
    figure = drawn()
    assert figure is not None
    picture = np.asarray(Image.open(io.BytesIO(png(figure))).convert("RGBA"))
    assert picture[..., 3].min() == 255
    assert (picture[[0, 0, -1, -1], [0, -1, 0, -1], :3] == 255).all()
    assert (picture[..., :3].mean(axis=2) < 60).mean() > 0.002, "there is text"


def test_the_classes_of_both_are_shown_the_largest_fall_of_recall_first() -> None:
    figure = drawn()
    assert figure is not None
    assert panels(figure) == {
        "improvement": [],
        "times the champion's": ["ms for a row", "ms for a batch", "MB of weights"],
        "recall": ["cat", " _dog", r"a\$b\$c"],
    }


def test_models_that_are_no_classifiers_have_no_recalls() -> None:
    figure = drawn(Score(0.9, {}, 0.0, 20.0, 10**7), Score(0.8, {}, 1.0, 20.0, 10**7))
    assert figure is not None
    assert png(figure).startswith(b"\x89PNG")
    assert list(panels(figure)) == ["improvement", "times the champion's"]


def test_a_first_champion_was_compared_with_nobody() -> None:
    assert drawn(champion=None) is None
