"""What the events of a model come to, as people and the gate are told."""

from __future__ import annotations

import pytest

from tests.champion.samples import MODEL, add_events, approval, decision, entry, version
from train_core.champion.history import ModelHistory
from train_core.champion.log import ModelLog
from train_core.champion.records import Record
from train_core.errors import CheckpointError
from train_core.policy.champion.gate_decision import Evidence, Improvement, Outcome, Score
from train_core.policy.champion.model_state import NextStep
from train_core.results import McNemar

ASKS = decision(outcome=Outcome.ASK, reasons=("every promotion has to be approved", "it is good"))


def history_of(storage: str, *records: Record) -> ModelHistory:
    add_events(storage, *records)
    return ModelLog(storage, MODEL).read()


@pytest.mark.promise("gate-evidence")
def test_a_decision_is_read_back_with_all_its_evidence(storage_url: str) -> None:
    score = Score(0.9, {"cat": 0.5, "dog": None}, 0.25, 1.5, 1000)
    made = decision(champion=4)
    made = made.model_copy(
        update={
            "evidence": Evidence(score, score, Improvement(0.1, 0.05, 0.15), has_changed_data=True),
            "comparison": made.comparison.model_copy(
                update={
                    "mcnemar": McNemar(
                        only_challenger_right=3, only_champion_right=1, p_value=0.625
                    )
                }
            ),
        }
    )
    assert history_of(storage_url, version(), made).decisions == {(1, 4): made}


def test_the_decision_on_a_version_is_that_beside_the_last_champion(storage_url: str) -> None:
    one, two = version(1), version(2)
    made = [decision(one, 1), decision(one, 3), decision(one, 12), decision(two, 3)]
    history = history_of(storage_url, one, two, *reversed(made))
    found = [history.newest_result(number) for number in (1, 2, 3)]
    assert [result.decision if result else None for result in found] == [made[2], made[3], None]


def test_the_result_says_who_is_champion_by_this_very_decision(storage_url: str) -> None:
    made, kept = decision(), decision(version(2), champion=1, outcome=Outcome.KEEP)
    history = history_of(storage_url, version(), version(2), made, kept)
    assert history.result(made).entry is None
    entered = history.entry_of(history.result(made))
    history = history_of(storage_url, entered, entry(2, version(7, "other")))
    result = history.result(made)
    assert result.entry == entered
    assert entered.decided_by == f"_models/{MODEL}/log/00000003.json"
    assert result.decision_uri == f"{storage_url}/{entered.decided_by}"
    assert history.result(kept).entry is None


@pytest.mark.promise("no-is-final")
def test_what_follows_for_a_version_is_read_from_the_events(storage_url: str) -> None:
    def follows(*records: Record) -> tuple[NextStep, object]:
        step, result = history_of(storage_url, *records).what_follows(1)
        return step, result.decision if result else None

    later = decision(champion=1)
    assert follows(version()) == (NextStep.COMPARE, None)
    assert follows(ASKS) == (NextStep.WAIT, ASKS)
    assert follows(entry(1, version(7, "other"))) == (NextStep.COMPARE, ASKS)
    assert follows(later) == (NextStep.PROMOTE, later)
    assert follows(approval(ASKS, is_approved=False)) == (NextStep.REJECTED, ASKS)
    back = entry(2, version(), by="rollback", decided_by="ann")
    assert follows(back)[0] is NextStep.SERVES


@pytest.mark.promise("gate-evidence")
def test_the_outcome_is_one_line(storage_url: str) -> None:
    kept = decision(outcome=Outcome.KEEP, reasons=("it is too slow", "and too large"))
    cases = {
        "models:/Digits/1 is not promoted: it is too slow; and too large": (kept, None),
        "models:/Digits/1 waits for approval: every promotion has to be approved; it is good": (
            ASKS,
            None,
        ),
        'models:/Digits/1 is rejected by ann ("looked at it"): it is good': (
            ASKS,
            approval(ASKS, is_approved=False),
        ),
    }
    for number, (line, (made, answer)) in enumerate(cases.items()):
        own = made.model_copy(update={"champion_number": number})
        given = [answer.model_copy(update={"champion_number": number})] if answer else []
        assert history_of(storage_url, own, *given).result(own).summary == line


def test_of_many_reasons_the_line_has_the_first_ones() -> None:
    reasons = tuple(f"recall of class {number} falls" for number in range(50))
    assert decision(reasons=reasons).why == (
        "recall of class 0 falls; recall of class 1 falls; recall of class 2 falls; and 47 more"
    )


@pytest.mark.promise("approval")
def test_an_approved_entry_says_who_approved_it_and_why(storage_url: str) -> None:
    history = history_of(storage_url, version(), ASKS, approval(ASKS))
    # Killed between the two, it is approved and no champion yet.
    assert history.result(ASKS).summary.startswith("models:/Digits/1 is approved by ann")
    made = history.entry_of(history.result(ASKS))
    assert (made.by, made.number) == ("approval", 1)
    assert history_of(storage_url, made).result(ASKS).summary == (
        'models:/Digits/1 became champion: approved by ann ("looked at it"): it is good'
    )


@pytest.mark.promise("faults-in-rows")
def test_what_may_be_in_a_damaged_event_is_not_told_and_all_else_is(storage_url: str) -> None:
    one, two, three = version(1), version(2), version(3)
    kept = decision(three, champion=1, outcome=Outcome.KEEP)
    asked = decision(two, champion=1, outcome=Outcome.ASK)
    history = history_of(
        storage_url, one, decision(one), entry(1, one), two, asked, approval(asked), three, kept
    )
    log = ModelLog(storage_url, MODEL)
    log.store.write("log/00000006.json", b"x")
    history = log.read()
    first, third = history.newest_result(1), history.newest_result(3)
    assert first
    assert first.status == "became champion"
    assert third
    assert third.status == "not promoted"
    with pytest.raises(CheckpointError, match="log/00000006"):
        history.newest_result(2)
    # It may have been another champion.
    with pytest.raises(CheckpointError, match="log/00000006"):
        _ = history.champion
    promoted = entry(2, two).model_copy(update={"by": "approval"})
    log.store.delete("log/00000006.json")
    assert history_of(storage_url, promoted).champion == promoted


@pytest.mark.promise("faults-in-rows")
def test_a_version_that_was_kept_is_not_told_if_a_later_event_cannot_be_read(
    storage_url: str,
) -> None:
    """It may be another decision on it, but none before the first."""
    kept, again = decision(outcome=Outcome.KEEP), decision(champion=1, outcome=Outcome.ASK)
    other = version(2, "other")
    history_of(storage_url, other, version(), kept, entry(1, other), again)
    log = ModelLog(storage_url, MODEL)
    for number in (1, 2, 5):
        whole = log.store.read(f"log/{number:08d}.json")
        log.store.write(f"log/{number:08d}.json", b"x")
        history = ModelLog(storage_url, MODEL).read()
        if number == 5:
            with pytest.raises(CheckpointError, match="log/00000005"):
                history.newest_result(1)
        else:
            assert history.newest_result(1) == history.result(again)
        log.store.write(f"log/{number:08d}.json", whole)


@pytest.mark.promise("one-champion")
def test_what_was_compared_with_a_champion_whose_entry_is_deleted_is_compared_again(
    storage_url: str,
) -> None:
    """No later champion has that number."""
    one, two, three, four = (version(number, f"run-{number}") for number in (1, 2, 3, 4))
    lost = decision(three, champion=2, outcome=Outcome.ASK)
    log = ModelLog(storage_url, MODEL)
    history_of(storage_url, one, decision(one), entry(1, one), two, decision(two, 1))
    history_of(storage_url, entry(2, two), three, lost, four)
    log.store.delete("log/00000006.json")
    beside = decision(four, champion=1)
    history = history_of(storage_url, beside)
    made = history.entry_of(history.result(beside))
    assert made.number == 3
    history = history_of(storage_url, made)
    assert history.result(beside).entry == made
    assert history.what_follows(3) == (NextStep.COMPARE, history.result(lost))


@pytest.mark.promise("one-champion")
def test_of_two_comparisons_the_one_with_the_present_champion_counts(storage_url: str) -> None:
    one, three = version(1), version(3, "run-3")
    lost, beside = decision(three, champion=2, outcome=Outcome.KEEP), decision(three, champion=1)
    history = history_of(storage_url, one, decision(one), entry(1, one), three, lost, beside)
    assert history.what_follows(3) == (NextStep.PROMOTE, history.result(beside))
    made = history.entry_of(history.result(beside))
    history = history_of(storage_url, made)
    assert history.result(lost).entry is None
    step, result = history.what_follows(3)
    assert result
    assert (step, result.decision, result.entry) == (NextStep.SERVES, beside, made)
