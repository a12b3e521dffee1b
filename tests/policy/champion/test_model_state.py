"""A registered model's state: what follows for a version, and that no order of events breaks it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_core.policy.champion.gate_decision import Outcome
from train_core.policy.champion.model_state import (
    Answered,
    Decided,
    Event,
    ModelState,
    NextStep,
    Promoted,
    RolledBack,
    fold,
)

ANSWERS = {"yes": True, "no": False}
CHALLENGER = 9


def events_of(decisions: str) -> Iterator[Event]:
    """Of `1:ask 2:ask=no`: asked beside the champion of number 1, then of 2, then rejected."""
    for word in decisions.split():
        number, _, rest = word.partition(":")
        outcome, _, answer = rest.partition("=")
        yield Decided(CHALLENGER, int(number), Outcome(outcome))
        if answer:
            yield Answered(CHALLENGER, int(number), ANSWERS[answer])


def champions(number: int) -> list[Event]:
    """That many champions, of which none is the challenger."""
    return [Promoted(version, version) for version in range(1, number + 1)]


@pytest.mark.promise("no-is-final")
@pytest.mark.parametrize(
    ("decisions", "champion", "step"),
    [
        # Nobody has decided on it in comparison with the champion of now.
        ("", 0, "compare"),
        ("", 3, "compare"),
        ("1:promote", 2, "compare"),
        ("1:keep", 2, "compare"),
        # The decision on it is carried out, by whoever goes on with the run.
        ("0:promote", 0, "promote"),
        ("1:keep", 1, "kept"),
        ("1:ask", 1, "wait"),
        # A person's answer to the comparison of now.
        ("1:ask=yes", 1, "promote"),
        ("1:ask=no", 1, "rejected"),
        # An approval is one of a comparison: with another champion there is another question.
        ("1:ask=yes", 2, "compare"),
        ("1:ask=yes 2:ask", 2, "wait"),
        ("1:ask=yes 2:keep", 2, "kept"),
        ("1:ask=yes 2:promote", 2, "promote"),
        # A question that was not answered is replaced by the newer one.
        ("1:ask", 2, "compare"),
        ("1:ask 2:promote", 2, "promote"),
        ("1:ask 2:ask=yes", 2, "promote"),
        # A rejection is one of the version, whoever is champion then, and whenever it came.
        ("1:ask=no", 2, "rejected"),
        ("1:ask=no 2:promote", 2, "rejected"),
        ("1:ask=no 2:ask", 2, "rejected"),
        ("1:ask=no 2:ask=yes", 2, "rejected"),
        ("1:ask=yes 2:ask=no", 2, "rejected"),
        ("1:ask=yes 2:ask=no", 3, "rejected"),
        # The champion is gone back to that it was compared with before: the same number never
        # comes again, so a rollback is another comparison.
        ("1:keep 2:keep", 3, "compare"),
    ],
)
def test_what_follows_for_a_version(decisions: str, champion: int, step: str) -> None:
    assert fold([*events_of(decisions), *champions(champion)]).next_step(CHALLENGER) == step


@pytest.mark.promise("no-is-final")
@pytest.mark.parametrize("reign", [Promoted(CHALLENGER, 2), RolledBack(CHALLENGER, 2)])
@pytest.mark.parametrize("decisions", ["", "1:promote", "1:ask", "1:ask=yes", "1:ask=no", "1:keep"])
def test_nothing_follows_for_the_champion_not_even_for_one_that_was_gone_back_to(
    decisions: str, reign: Event
) -> None:
    state = fold([*champions(1), *events_of(decisions), reign])
    assert state.next_step(CHALLENGER) == "serves"
    assert not state.can_be_answered(CHALLENGER, 1)


@pytest.mark.promise("approval")
@pytest.mark.parametrize(
    ("decisions", "asked"),
    [
        ("1:ask", [1]),
        # An answer to an earlier question may be a rejection, which is one of the version.
        ("1:ask 2:ask", [1, 2]),
        ("1:ask 2:keep", [1]),
        ("1:ask=yes 2:ask", [2]),
        ("1:ask 2:ask=no", []),
        ("1:promote 2:keep", []),
    ],
)
def test_a_person_can_answer_what_was_asked_until_somebody_has(
    decisions: str, asked: list[int]
) -> None:
    state = fold([*champions(2), *events_of(decisions)])
    assert [one for one in range(4) if state.can_be_answered(CHALLENGER, one)] == asked


@pytest.mark.parametrize(
    ("decisions", "standing"),
    [
        ("", None),
        ("0:keep", 0),
        ("3:keep 12:promote 1:ask", 12),
        # None counts after the one that was rejected.
        ("1:ask 2:ask=no 3:promote", 2),
        ("1:ask=yes 2:ask", 2),
    ],
)
def test_the_decision_that_counts_is_the_newest_or_the_one_that_was_rejected(
    decisions: str, standing: int | None
) -> None:
    state = fold([*events_of(decisions), Decided(1, 99, Outcome.KEEP)])
    assert state.standing(CHALLENGER) == (None if standing is None else (CHALLENGER, standing))
    assert state.decided == ([1] if standing is None else [1, CHALLENGER])


def test_of_two_decisions_and_of_two_answers_the_first_one_counts() -> None:
    asked, no, yes = Decided(1, 0, Outcome.ASK), Answered(1, 0, False), Answered(1, 0, True)
    state = fold([asked, Decided(1, 0, Outcome.PROMOTE), no, yes])
    assert state == fold([asked, no])


def history(text: str) -> list[Event]:
    """Of `1 2 <1`: version 1, then 2, then back to 1."""
    return [
        RolledBack(int(word[1:]), number) if word[0] == "<" else Promoted(int(word), number)
        for number, word in enumerate(text.split(), start=1)
    ]


@pytest.mark.promise("rollback")
@pytest.mark.parametrize(
    ("champions", "before"),
    [
        ("", None),
        ("1", None),
        ("1 2", 1),
        ("1 2 3", 2),
        # What was rolled back is not gone back to.
        ("1 2 <1", None),
        ("1 2 3 <2", 1),
        ("1 2 3 <2 <1", None),
        ("1 2 3 <1", None),
        ("1 2 <1 3", 1),
        ("1 2 <1 3 <1", None),
        # Somebody goes back to one that was never champion.
        ("3 <1", 3),
        ("3 <1 <3", None),
        # A version that was champion before is promoted once more.
        ("1 2 1", 2),
        ("1 2 1 <2", 1),
    ],
)
def test_a_rollback_goes_to_the_champion_before(champions: str, before: int | None) -> None:
    assert fold(history(champions)).champion_before() == before


@given(st.lists(st.integers(1, 5), max_size=12))
def test_rollbacks_one_after_the_other_come_to_an_end_and_never_forward(
    promoted: list[int],
) -> None:
    made: list[Event] = [Promoted(version, at) for at, version in enumerate(promoted, start=1)]
    seen = []
    while (before := fold(made).champion_before()) is not None:
        assert before != fold(made).champion
        made.append(RolledBack(before, len(made) + 1))
        seen.append(before)
        assert len(seen) <= len(promoted)
    if seen:
        assert seen[-1] == promoted[0]


VERSIONS = (1, 2, 3)


def acts(state: ModelState) -> Iterator[Event]:
    """What a process may want to record that knows this state."""
    now = state.champion_number
    for version in VERSIONS:
        match state.next_step(version):
            case NextStep.COMPARE:
                yield from (Decided(version, now, outcome) for outcome in Outcome)
            case NextStep.PROMOTE:
                yield Promoted(version, now + 1)
        # A form about an earlier comparison may still be open.
        for number in range(now + 1):
            if state.can_be_answered(version, number):
                yield from (Answered(version, number, yes) for yes in (True, False))
    if before := state.champion_before():
        yield RolledBack(before, now + 1)


def recorded(data: st.DataObject) -> list[Event]:
    """What several processes record that act on what they have read, which may be old.

    An event's place is its number, so who has read an old state finds it taken.
    """
    log: list[Event] = []
    for _ in range(data.draw(st.integers(1, 25), "acts")):
        known = log[: data.draw(st.integers(max(0, len(log) - 4), len(log)), "events read")]
        event = data.draw(st.sampled_from(list(acts(fold(known))) or [None]), "event")
        if event is not None and len(known) == len(log):
            log.append(event)
    return log


def check_champions(log: list[Event]) -> None:
    """Each champion follows from one decision, which compared it with the one before it."""
    number = 0
    for at, event in enumerate(log):
        if not isinstance(event, Promoted | RolledBack):
            continue
        number += 1
        assert event.number == number
        before = log[:at]
        if isinstance(event, RolledBack):
            assert any(
                isinstance(one, Promoted | RolledBack) and one.version == event.version
                for one in before
            )
            continue
        compared = event.version, number - 1
        is_approved = Answered(*compared, is_approved=True) in before
        assert Decided(*compared, Outcome.PROMOTE) in before or (
            Decided(*compared, Outcome.ASK) in before and is_approved
        )


def check_answers(log: list[Event]) -> None:
    """Nothing follows for a version that a person has rejected, and nobody is asked twice."""
    rejected: set[int] = set()
    answered: set[tuple[int, int]] = set()
    for event in log:
        match event:
            case Answered(version, number, is_approved):
                assert Decided(version, number, Outcome.ASK) in log[: log.index(event)]
                assert (version, number) not in answered
                assert version not in rejected
                answered.add((version, number))
                if not is_approved:
                    rejected.add(version)
            case Decided(version) | Promoted(version):
                assert version not in rejected
            case RolledBack():
                pass
    state = fold(log)
    found = {one for one in VERSIONS if state.next_step(one) is NextStep.REJECTED}
    assert found == rejected - {state.champion}


@pytest.mark.promise("one-champion")
@given(data=st.data())
def test_whoever_acts_on_what_he_read_each_champion_follows_from_its_decision(
    data: st.DataObject,
) -> None:
    check_champions(recorded(data))


@pytest.mark.promise("no-is-final")
@given(data=st.data())
def test_in_one_log_a_persons_answer_is_final_whoever_acts_at_once(data: st.DataObject) -> None:
    check_answers(recorded(data))
