"""The gate's decisions in a run folder: committed once, told from each other, never altered."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.storage.champions import MODEL, approval, decision, entry, version
from tests.storage.samples import damaged, record
from train_core.errors import CheckpointError, ConfigError, FencedError
from train_core.policy.champion.gate_decision import Evidence, Improvement, Outcome, Score
from train_core.policy.champion.model_state import NextStep
from train_core.results import Decision, McNemar
from train_core.storage.records.documents import with_checksum
from train_core.storage.registered_models.decisions import (
    approval_key,
    decided_by,
    decision_key,
    decision_name,
    entry_of,
    find_approval,
    find_decision,
    gate_result,
    newest_decision,
    newest_decisions,
    what_follows,
)
from train_core.storage.registered_models.model_registry import ModelRegistry
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import ResultWriter, RunWriter, begin_attempt, create_run

ASKS = decision(outcome=Outcome.ASK, reasons=("every promotion has to be approved", "it is good"))


@pytest.fixture
def folder(storage_url: str) -> RunFolder:
    made = RunFolder(storage_url, "run")
    create_run(made, record())
    begin_attempt(made).release()
    return made


@pytest.fixture
def writer(folder: RunFolder) -> RunWriter:
    return RunWriter(folder, 1)


@pytest.mark.promise("gate-evidence")
def test_a_decision_is_read_back_with_all_its_evidence(
    folder: RunFolder, writer: RunWriter
) -> None:
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
    writer.commit_decision(made)
    assert find_decision(folder, decision_name(made)) == made
    assert decision_key(made) == f"decisions/{MODEL}/v00000001-c00000004.json"


def test_a_decision_is_committed_once(folder: RunFolder, writer: RunWriter) -> None:
    writer.commit_decision(decision())
    with pytest.raises(FileExistsError):
        writer.commit_decision(decision(outcome=Outcome.KEEP))
    found = find_decision(folder, decision_name(decision()))
    assert found
    assert found.outcome is Outcome.PROMOTE


def test_an_attempt_that_was_replaced_decides_nothing(folder: RunFolder, writer: RunWriter) -> None:
    begin_attempt(folder).release()
    with pytest.raises(FencedError):
        writer.commit_decision(decision())
    assert newest_decisions(folder) == []


def test_the_newest_decision_is_that_on_the_version_beside_the_last_champion(
    folder: RunFolder, writer: RunWriter
) -> None:
    one, two, other = version(1), version(2), version(1, model="Other")
    made = [decision(one), decision(one, 3), decision(one, 12), decision(two, 3), decision(other)]
    for each in reversed(made):
        writer.commit_decision(each)
    assert newest_decision(folder, one) == made[2]
    assert newest_decision(folder, two) == made[3]
    assert newest_decision(folder, other) == made[4]
    assert newest_decision(folder, version(3)) is None
    assert newest_decisions(folder) == [made[2], made[3], made[4]]


@pytest.mark.promise("approval")
def test_a_decision_is_answered_once_and_for_itself(folder: RunFolder, writer: RunWriter) -> None:
    later = decision(champion=2, outcome=Outcome.ASK)
    for asked in (ASKS, later):
        writer.commit_decision(asked)
    answer = approval(ASKS)
    # Whoever is asked needs no lease.
    ResultWriter(folder).commit_approval(ASKS, answer)
    with pytest.raises(FileExistsError):
        ResultWriter(folder).commit_approval(ASKS, approval(ASKS, is_approved=False))
    assert find_approval(folder, ASKS) == answer
    assert find_approval(folder, later) is None
    with pytest.raises(ValueError, match="another decision"):
        ResultWriter(folder).commit_approval(later, answer)
    folder.store.write(approval_key(later), folder.store.read(approval_key(ASKS)))
    with pytest.raises(CheckpointError, match="is the answer to another decision"):
        find_approval(folder, later)


def test_the_result_says_who_is_champion_by_this_very_decision(
    folder: RunFolder, writer: RunWriter
) -> None:
    registry = ModelRegistry(folder.storage, MODEL)
    made, kept = decision(), decision(version(2), champion=1, outcome=Outcome.KEEP)
    for each in (made, kept):
        writer.commit_decision(each)
    assert gate_result(folder, made).entry is None
    entered = registry.add_champion(entry_of(folder, made, None))
    registry.add_champion(entry(2, version(7, "other"), decided_by="other/decisions/x"))
    result = gate_result(folder, made)
    assert result.entry == entered
    assert result.decision_uri == folder.store.uri(decision_key(made))
    assert gate_result(folder, kept).entry is None


@pytest.mark.promise("no-is-final")
def test_what_follows_for_a_version_is_read_from_its_documents(
    folder: RunFolder, writer: RunWriter
) -> None:
    of, champion = version(), entry(2, version(7, "other"))
    assert what_follows(folder, of, None) == (NextStep.COMPARE, None)
    writer.commit_decision(ASKS)
    asked = gate_result(folder, ASKS)
    assert what_follows(folder, of, None) == (NextStep.WAIT, asked)
    assert what_follows(folder, of, champion) == (NextStep.COMPARE, asked)
    later = decision(champion=2)
    writer.commit_decision(later)
    assert what_follows(folder, of, champion) == (NextStep.PROMOTE, gate_result(folder, later))
    writer.commit_approval(ASKS, approval(ASKS, is_approved=False))
    assert what_follows(folder, of, champion) == (NextStep.REJECTED, gate_result(folder, ASKS))
    back = entry(3, of, by="rollback", decided_by="ann")
    assert what_follows(folder, of, back)[0] is NextStep.SERVES


@pytest.mark.promise("altered-decisions")
def test_a_decision_on_another_checkpoint_is_not_carried_out(
    folder: RunFolder, writer: RunWriter
) -> None:
    """As where somebody has deleted the model, and the run registers its next checkpoint."""
    writer.commit_decision(decision())
    again = version().model_copy(update={"created_at": "2026-02-02T00:00:00+00:00"})
    assert what_follows(folder, again, None)[0] is NextStep.PROMOTE
    other = again.model_copy(update={"checkpoint_digest": "f" * 64})
    for read in (lambda: what_follows(folder, other, None), lambda: newest_decision(folder, other)):
        with pytest.raises(CheckpointError, match="is on another checkpoint than the one that is"):
            read()


@pytest.mark.promise("gate-evidence")
def test_the_outcome_is_one_line(folder: RunFolder, writer: RunWriter) -> None:
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
        writer.commit_decision(own)
        if answer:
            its = answer.model_copy(update={"champion_number": number})
            writer.commit_approval(own, its)
        assert gate_result(folder, own).summary == line


def test_of_many_reasons_the_line_has_the_first_ones() -> None:
    reasons = tuple(f"recall of class {number} falls" for number in range(50))
    assert decision(reasons=reasons).why == (
        "recall of class 0 falls; recall of class 1 falls; recall of class 2 falls; and 47 more"
    )


@pytest.mark.promise("approval")
def test_an_approved_entry_says_who_approved_it_and_why(
    folder: RunFolder, writer: RunWriter
) -> None:
    writer.commit_decision(ASKS)
    writer.commit_approval(ASKS, approval(ASKS))
    # Killed between the two, it is approved and no champion yet.
    assert gate_result(folder, ASKS).summary.startswith("models:/Digits/1 is approved by ann")
    made = entry_of(folder, ASKS, approval(ASKS))
    ModelRegistry(folder.storage, MODEL).add_champion(made)
    assert (made.by, made.decided_by) == ("approval", decided_by(folder, ASKS))
    assert gate_result(folder, ASKS).summary == (
        'models:/Digits/1 became champion: approved by ann ("looked at it"): it is good'
    )


@pytest.mark.promise("altered-decisions")
@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_an_altered_decision_or_answer_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    folder = RunFolder(str(tmp_path), "run")
    folder.store.write(decision_key(ASKS), with_checksum(ASKS))
    folder.store.write(approval_key(ASKS), with_checksum(approval(ASKS)))
    key, read = data.draw(
        st.sampled_from(
            [
                (decision_key(ASKS), lambda: find_decision(folder, decision_name(ASKS))),
                (approval_key(ASKS), lambda: find_approval(folder, ASKS)),
            ]
        )
    )
    whole = folder.store.read(key)
    folder.store.write(key, data.draw(damaged(whole)))
    with pytest.raises(CheckpointError, match=key):
        read()


@pytest.mark.promise("altered-decisions")
def test_a_decision_under_the_name_of_another_is_refused(
    folder: RunFolder, writer: RunWriter
) -> None:
    writer.commit_decision(decision())
    for other in (decision(champion=1), decision(version(2)), decision(version(1, model="Other"))):
        folder.store.write(decision_key(other), folder.store.read(decision_key(decision())))
        with pytest.raises(CheckpointError, match=r"is that of Digits/v00000001-c00000000\.json"):
            find_decision(folder, decision_name(other))


@pytest.mark.promise("altered-decisions")
def test_a_decision_of_a_newer_evertrain_is_no_damage(folder: RunFolder) -> None:
    newer: Decision = decision().model_copy(update={"format": 2})
    folder.store.create(decision_key(newer), with_checksum(newer))
    with pytest.raises(ConfigError, match="has format 2, this evertrain reads up to 1"):
        newest_decisions(folder)
