"""When a pipeline reached what it waits for."""

from __future__ import annotations

from train_core.driver.timeline import Timeline
from train_core.storage.records.journal import Entry

LOSS = {"train/loss": 1.0}


def test_events_are_in_their_order_in_seconds_since_the_beginning() -> None:
    timeline = Timeline(began_at=100)
    timeline.mark("later", 103.5)
    timeline.mark("Ray up", 101.25)
    assert list(timeline.seconds().items()) == [("Ray up", 1.25), ("later", 3.5)]


def test_steps_of_a_driver_before_this_one_do_not_count() -> None:
    timeline = Timeline(began_at=100)
    entries = [
        Entry(step=1, time=90, metrics=LOSS),
        Entry(step=2, time=104, metrics=LOSS),
        Entry(step=3, time=105, metrics=LOSS),
        Entry(step=3, time=106, metrics={"validation/accuracy": 1.0}),
    ]
    timeline.mark_steps(entries)
    assert timeline.seconds() == {"first step": 4, "last step": 5}


def test_without_a_new_step_there_is_none() -> None:
    timeline = Timeline(began_at=100)
    timeline.mark_steps([Entry(step=1, time=90, metrics=LOSS)])
    assert timeline.seconds() == {}
