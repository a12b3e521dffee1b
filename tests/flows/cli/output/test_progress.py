from __future__ import annotations

from io import StringIO

import pytest

from evertrain_flows.cli.output.progress import _Bar, _Lines
from evertrain_flows.cli.output.terminal import Screen
from train_core.client.live import Live

LIVE = Live(stage="train", attempt=1, step=6, total_steps=10, epoch=0, epochs=1, loss=0.5, time=1.0)
WAITS, TRAINS = ("train", None), ("train", LIVE)


@pytest.mark.parametrize(
    ("readings", "shown", "not_shown"),
    [
        ([], "prepare", "train"),
        ([WAITS], "train", "step"),
        ([WAITS], "waiting for the training", "step"),
        ([WAITS, TRAINS], "step 6/10", "waiting"),
        # Nothing new since the last look.
        ([WAITS, TRAINS, WAITS], "step 6/10", "waiting"),
        ([WAITS, TRAINS, ("evaluate validation", None)], "evaluate validation", "step"),
    ],
)
def test_the_bar_says_where_the_pipeline_is(
    readings: list[tuple[str, Live | None]], shown: str, not_shown: str
) -> None:
    drawn = StringIO()
    bar = _Bar(Screen(drawn, is_terminal=True))
    for stage, live in readings:
        bar.show([stage], live)
    # Its last frame is drawn when it is closed.
    bar.open()
    bar.close()
    text = drawn.getvalue()
    assert shown in text
    assert not_shown not in text


def test_lines_tell_each_stage_once_also_one_that_was_over_before_it_was_looked_at() -> None:
    written = StringIO()
    lines = _Lines(Screen(written))
    lines.open()
    lines.show(["prepare"], None)
    lines.show(["prepare", "train"], LIVE)
    lines.show(["prepare", "train", "evaluate validation", "infer"], None)
    lines.show(["prepare", "train", "evaluate validation", "infer"], None)
    shown = written.getvalue().splitlines()
    assert shown == ["prepare", "train", "evaluate validation", "infer"]
