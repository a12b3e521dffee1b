from __future__ import annotations

from io import StringIO

import pytest
from rich.console import Console

from flows.progress import _Bar
from tasks.live import Live

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
    console = Console(file=StringIO(), force_terminal=True, width=120)
    bar = _Bar(console)
    for reading in readings:
        bar.show(*reading)
    # Its last frame is drawn when it is closed.
    bar.open()
    bar.close()
    assert isinstance(console.file, StringIO)
    text = console.file.getvalue()
    assert shown in text
    assert not_shown not in text
