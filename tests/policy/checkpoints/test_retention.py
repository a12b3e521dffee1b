from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_core.config import TrainConfig
from train_core.policy.checkpoints.retention import (
    RetentionRules,
    RetentionVerdict,
    finalists,
    retention_verdicts,
)
from train_core.policy.checkpoints.selection import Candidate, Order, ranked, score

NOW = datetime(2026, 1, 2, tzinfo=UTC)


def rules(
    keep_last: int = 1,
    keep_best: int = 1,
    keep_every_steps: int = 0,
    keep_newer_than_s: float = 0,
    order: Order = "max",
) -> RetentionRules:
    return RetentionRules(
        monitor="accuracy",
        monitor_order=order,
        keep_last=keep_last,
        keep_best=keep_best,
        keep_every_steps=keep_every_steps,
        keep_newer_than_s=keep_newer_than_s,
    )


def candidates(values: list[float | None]) -> list[Candidate]:
    """Named after their steps, which are their places; each a minute younger than the last."""
    begin = NOW - timedelta(minutes=len(values))
    return [
        Candidate(f"{step}", step, {"accuracy": value}, begin + timedelta(minutes=step))
        for step, value in enumerate(values)
    ]


def verdicts(
    asked: list[Candidate], asked_rules: RetentionRules, **protected: str
) -> list[RetentionVerdict]:
    named = {name.removeprefix("step"): [why] for name, why in protected.items()}
    return retention_verdicts(asked, asked_rules, now=NOW, protected=named)


def gone(values: list[float | None], asked_rules: RetentionRules, **protected: str) -> str:
    found = verdicts(candidates(values)[::-1], asked_rules, **protected)
    return "".join(verdict.candidate.name for verdict in found if not verdict.is_kept)


@pytest.mark.parametrize(
    ("values", "keep_last", "keep_best", "expected"),
    [
        ([], 1, 1, ""),
        ([0.1], 1, 1, ""),
        ([0.1, 0.2, 0.3, 0.4], 1, 1, "012"),
        ([0.4, 0.3, 0.2, 0.1], 1, 1, "12"),
        ([0.4, 0.3, 0.2, 0.1], 2, 1, "1"),
        ([0.4, 0.3, 0.2, 0.1], 1, 2, "2"),
        ([0.5, 0.5, 0.1, 0.1], 1, 1, "02"),  # of two equal ones the later is the best
        ([None, math.nan, 0.1, 0.2], 1, 3, "01"),  # what was not measured is not among the best
        ([math.nan, 0.1, None, 0.0], 1, 1, "02"),
        ([None, None, None], 1, 3, "01"),
        ([0.1, 0.2], 9, 9, ""),
    ],
)
def test_the_newest_and_the_best_stay(
    values: list[float | None], keep_last: int, keep_best: int, expected: str
) -> None:
    assert gone(values, rules(keep_last, keep_best)) == expected


def test_with_order_min_the_lowest_stay() -> None:
    assert gone([0.4, 0.1, 0.3, 0.2], rules(order="min")) == "02"
    assert gone([0.4, math.nan, 0.3, 0.2], rules(order="min")) == "012"


@pytest.mark.parametrize(
    ("every", "expected"),
    [(0, "01234"), (1, "0"), (2, "013"), (3, "0124"), (4, "0123"), (9, "01234")],
)
def test_those_of_every_so_many_steps_stay(every: int, expected: str) -> None:
    # Step 5 is the newest and the best; nothing was trained before step 0.
    assert gone([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], rules(keep_every_steps=every)) == expected


@pytest.mark.parametrize(
    ("newer_than_s", "expected"),
    [
        (0, "012"),  # the rule is off
        (60, "012"),  # the newest is a minute old, which is not younger than a minute
        (61, "012"),  # the newest stays anyway
        (121, "01"),
        (120, "012"),
        (240.5, ""),
        (1e9, ""),
    ],
)
def test_what_is_younger_stays(newer_than_s: float, expected: str) -> None:
    # They are 4, 3, 2 and 1 minutes old.
    assert gone([0.1, 0.2, 0.3, 0.4], rules(keep_newer_than_s=newer_than_s)) == expected


def test_what_has_no_known_age_counts_as_young() -> None:
    asked = [Candidate("0", 0, {}), *candidates([0.1, 0.2])[1:]]
    assert all(one.is_kept for one in verdicts(asked, rules(keep_newer_than_s=1)))
    assert not verdicts(asked, rules())[0].is_kept


def test_one_from_the_future_counts_as_young() -> None:
    asked = [Candidate("0", 0, {}, NOW + timedelta(hours=1)), *candidates([0.1, 0.2])[1:]]
    assert verdicts(asked, rules(keep_newer_than_s=1))[0].reasons == ("younger than 1 s",)


def test_a_time_of_another_zone_is_the_same_time() -> None:
    elsewhere = NOW.astimezone(datetime.strptime("+0900", "%z").tzinfo) - timedelta(seconds=5)
    asked = [Candidate("0", 0, {}, elsewhere), *candidates([0.1, 0.2])[1:]]
    assert verdicts(asked, rules(keep_newer_than_s=6))[0].is_kept
    assert not verdicts(asked, rules(keep_newer_than_s=5))[0].is_kept


def test_what_is_protected_stays() -> None:
    assert gone([0.1, 0.2, 0.3, 0.4], rules(), step1="pinned") == "02"


def test_a_verdict_says_everything_that_keeps_a_checkpoint() -> None:
    found = verdicts(candidates([0.4, 0.1, 0.3]), rules(2, 1, 2, 61), step0="read by me")
    assert {one.candidate.name: one.reasons for one in found} == {
        "0": ("among the best 1 by accuracy", "read by me"),
        "1": ("among the last 2",),
        "2": (
            "the newest: a resume begins here",
            "among the last 2",
            "one of every 2 steps",
            "younger than 61 s",
        ),
    }


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([None, None, None, None], "01"),
        ([0.9, None, None, None], "12"),
        ([None, 0.1, 0.2, 0.3], "01"),
        ([0.5, 0.1, 0.2, None], "1"),
    ],
)
def test_in_ray_trains_meaning_one_without_the_metric_is_the_worst_of_the_best(
    values: list[float | None], expected: str
) -> None:
    asked = TrainConfig(
        train_fn="package.module:function", monitor="accuracy", keep_last=1, keep_best=2
    )
    assert gone(values, asked) == expected


@pytest.mark.parametrize(("keep_last", "keep_best"), [(0, 1), (1, 0), (-1, 1)])
def test_rules_that_would_not_keep_the_newest_and_the_best_are_refused(
    keep_last: int, keep_best: int
) -> None:
    with pytest.raises(ValueError, match="greater than or equal to 1"):
        rules(keep_last, keep_best)


@pytest.mark.parametrize(("every", "newer"), [(-1, 0.0), (0, -0.5)])
def test_negative_rules_are_refused(every: int, newer: float) -> None:
    with pytest.raises(ValueError, match="greater than or equal to 0"):
        rules(1, 1, every, newer)


VALUES = st.lists(st.none() | st.floats(), max_size=20)
RULES = st.builds(
    rules,
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 5),
    st.sampled_from([0.0, 30.0, 60.5, 300.0]),
    st.sampled_from(["min", "max"]),
)


@pytest.mark.promise("retention")
@given(VALUES, RULES, st.sets(st.integers(0, 19)))
def test_nothing_that_a_rule_keeps_goes_and_all_else_does(
    values: list[float | None], asked_rules: RetentionRules, protected: set[int]
) -> None:
    asked = candidates(values)
    named = {f"{step}": ["pinned"] for step in protected}
    found = retention_verdicts(asked[::-1], asked_rules, now=NOW, protected=named)
    assert [one.candidate for one in found] == asked
    kept = [one.candidate for one in found if one.is_kept]
    assert kept[-asked_rules.keep_last :] == asked[-asked_rules.keep_last :]
    order = asked_rules.order
    best = [
        one
        for one in ranked(asked, "accuracy", order)[: asked_rules.keep_best]
        if score(one.metrics["accuracy"], order) > -math.inf
    ]
    every, newer_than_s = asked_rules.keep_every_steps, asked_rules.keep_newer_than_s
    for place, one in enumerate(asked):
        age_s = 60 * (len(asked) - place)
        expected = (
            place >= len(asked) - asked_rules.keep_last
            or one in best
            or (every > 0 and place > 0 and place % every == 0)
            or age_s < newer_than_s
            or place in protected
        )
        assert (one in kept) == expected


@pytest.mark.promise("retention")
@given(VALUES, RULES, st.data())
def test_an_interrupted_run_keeps_what_an_undisturbed_one_keeps(
    values: list[float | None], asked_rules: RetentionRules, data: st.DataObject
) -> None:
    """Rules that were applied after some commits only and at the end, or after each of them."""
    asked_rules = rules(
        asked_rules.keep_last,
        asked_rules.keep_best,
        asked_rules.keep_every_steps,
        order=asked_rules.order,
    )
    applied = data.draw(st.lists(st.booleans(), min_size=len(values), max_size=len(values)))
    undisturbed: list[Candidate] = []
    interrupted: list[Candidate] = []
    for one, is_applied in zip(candidates(values), applied, strict=True):
        undisturbed = survivors([*undisturbed, one], asked_rules)
        interrupted.append(one)
        if is_applied:
            interrupted = survivors(interrupted, asked_rules)
    assert survivors(interrupted, asked_rules) == undisturbed


@given(VALUES, RULES)
def test_applying_the_rules_again_deletes_nothing_more(
    values: list[float | None], asked_rules: RetentionRules
) -> None:
    once = survivors(candidates(values), asked_rules)
    assert survivors(once, asked_rules) == once


@pytest.mark.promise("finalists")
@given(VALUES, RULES, st.data())
def test_what_a_storage_was_too_slow_for_changes_no_finalist(
    values: list[float | None], asked_rules: RetentionRules, data: st.DataObject
) -> None:
    """Any but the end and those with a validation may be left out."""
    asked = candidates(values)
    stored = [
        one
        for one in asked
        if one is asked[-1] or one.metrics["accuracy"] is not None or data.draw(st.booleans())
    ]

    def chosen(committed: list[Candidate]) -> list[Candidate]:
        kept: list[Candidate] = []
        for one in committed:
            kept = survivors([*kept, one], asked_rules)
        return finalists(kept, asked_rules)

    assert chosen(stored) == chosen(asked)


def test_finalists_are_the_best_of_those_with_a_validation_and_the_end() -> None:
    found = finalists(candidates([0.1, None, 0.4, None, 0.3, None]), rules(keep_best=2))
    assert [one.name for one in found] == ["2", "4", "5"]
    assert finalists([], rules()) == []


def survivors(asked: list[Candidate], asked_rules: RetentionRules) -> list[Candidate]:
    found = retention_verdicts(asked, asked_rules, now=NOW, protected={})
    return [one.candidate for one in found if one.is_kept]


VALUES = st.lists(st.one_of(st.none(), st.floats(0, 1)), min_size=2, max_size=8)


@pytest.mark.promise("unscheduled")
@given(VALUES, st.integers(1, 3), st.integers(1, 3), st.integers(0, 3), st.data())
def test_one_that_was_not_scheduled_takes_no_other_ones_place(
    values: list[float | None], last: int, best: int, every: int, data: st.DataObject
) -> None:
    asked, some = candidates(values), rules(last, best, every, keep_newer_than_s=60)
    place = data.draw(st.integers(0, len(values) - 2))
    extra = replace(asked[place], name="extra", scheduled=False)
    before = {v.candidate.name: v.reasons for v in verdicts(asked, some)}
    after = {v.candidate.name: v.reasons for v in verdicts([*asked, extra], some)}
    assert after.pop("extra") == ()
    assert after == before


def test_one_that_was_not_scheduled_stays_while_it_is_the_newest() -> None:
    asked = [*candidates([0.5, 0.6]), Candidate("extra", 7, {}, NOW, scheduled=False)]
    found = {v.candidate.name: v.reasons for v in verdicts(asked, rules())}
    assert found["extra"] == ("the newest: a resume begins here",)
    assert found["1"] == ("among the last 1", "among the best 1 by accuracy")
