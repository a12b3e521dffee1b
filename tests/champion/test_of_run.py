"""What became of a run's versions is read from few documents."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.champion.samples import (
    MODEL,
    add_events,
    approval,
    decision,
    entry,
    note,
    register,
    version,
    write_earlier,
)
from tests.storage.doubles.faulty_store import FaultyStore
from tests.storage.samples import commit, record
from train_core.champion.log import ModelLog
from train_core.champion.of_run import gates_of, newest_gate, result_now
from train_core.client.run_summaries import list_runs
from train_core.errors import CheckpointError, FencedError
from train_core.policy.champion.gate_decision import Outcome
from train_core.results import GateResult
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt, create_run


@pytest.fixture
def folder(storage_url: str) -> RunFolder:
    made = RunFolder(storage_url, "run")
    create_run(made, record())
    commit(made, 1, 1)
    begin_attempt(made).release()
    return made


def statuses(folder: RunFolder) -> list[str]:
    return [
        f"{one.result.decision.challenger.version} {one.result.status}" for one in gates_of(folder)
    ]


def test_a_run_without_a_version_has_none(folder: RunFolder) -> None:
    assert gates_of(folder) == []
    register(folder, version())
    assert newest_gate(folder) is None


def test_each_version_of_the_run_comes_with_what_became_of_it(folder: RunFolder) -> None:
    add_events(
        folder.storage,
        version(1, "other"),
        decision(version(1, "other")),
        entry(1, version(1, "other")),
    )
    made = decision(version(2), champion=1, outcome=Outcome.ASK)
    register(folder, version(2))
    add_events(folder.storage, made)
    register(folder, version(3))
    add_events(folder.storage, decision(version(3), champion=1, outcome=Outcome.KEEP))
    assert statuses(folder) == ["2 waits for approval", "3 not promoted"]
    add_events(folder.storage, approval(made), entry(2, version(2)))
    found = gates_of(folder)
    assert [(one.result.status, one.is_champion) for one in found] == [
        ("became champion", True),
        ("not promoted", False),
    ]
    assert found[0].question
    assert found[0].question.is_answered
    asked = GateResult(decision=made, decision_uri="")
    assert result_now(folder, asked).status == "became champion"


def test_only_events_after_the_runs_first_version_are_read(
    folder: RunFolder, tmp_path: Path
) -> None:
    for number in range(1, 40):
        add_events(folder.storage, version(number, f"run-{number}"))
    register(folder, version(40))
    add_events(folder.storage, decision(version(40)))
    log = ModelLog(folder.storage, MODEL)
    log.store = store = FaultyStore(log.store.url, tmp_path / "notes")
    (found,) = gates_of(folder, {MODEL: log})
    assert found.result.decision == decision(version(40))
    assert store.operations.count("read") <= 2


def test_a_model_that_is_registered_anew_is_found_by_its_new_numbers(folder: RunFolder) -> None:
    for _ in range(5):
        add_events(folder.storage, version(7, "other"))
    register(folder, version(1))
    ModelLog(folder.storage, MODEL).store.delete("")
    history = add_events(folder.storage, version(1))
    note(folder, history, version(1))
    add_events(folder.storage, decision(outcome=Outcome.KEEP))
    assert statuses(folder) == ["1 not promoted"]


def test_an_attempt_that_was_replaced_notes_nothing(folder: RunFolder) -> None:
    begin_attempt(folder).release()
    with pytest.raises(FencedError):
        RunWriter(folder, 1).note_version(version(), 1)


@pytest.mark.promise("earlier-versions")
def test_a_run_of_before_has_its_decisions_and_what_happens_later(folder: RunFolder) -> None:
    made = decision(outcome=Outcome.ASK)
    write_earlier(folder.storage, version(), made)
    assert statuses(folder) == ["1 waits for approval"]
    add_events(folder.storage, approval(made), entry(1))
    assert statuses(folder) == ["1 became champion"]


@pytest.mark.promise("earlier-versions")
def test_a_run_of_before_that_was_gone_back_to_serves(folder: RunFolder) -> None:
    made = decision(outcome=Outcome.ASK)
    other = version(2, "other")
    write_earlier(folder.storage, version(), made, other, entry(1, other))
    write_earlier(folder.storage, entry(2, by="rollback", decided_by="ann"))
    (found,) = gates_of(folder)
    assert found.is_champion
    add_events(folder.storage, entry(3, other, by="rollback", decided_by="ann"))
    (found,) = gates_of(folder)
    assert not found.is_champion


@pytest.mark.promise("faults-in-rows")
def test_a_damaged_event_hides_no_row_of_a_list(folder: RunFolder) -> None:
    names = ["open", "kept"]
    for number, name in enumerate(names, start=1):
        other = RunFolder(folder.storage, name)
        create_run(other, record(name))
        commit(other, 1, 1)
        register(other, version(number, name))
    asked = decision(version(1, "open"), outcome=Outcome.ASK)
    kept = decision(version(2, "kept"), outcome=Outcome.KEEP)
    add_events(folder.storage, asked, kept, approval(asked))
    ModelLog(folder.storage, MODEL).store.write("log/00000005.json", b"x")
    gates = {one.run: one.gate for one in list_runs(folder.storage)}
    assert gates["run"] == ""
    assert gates["kept"] == "2 not promoted"
    assert gates["open"].startswith("cannot be read: ")
    with pytest.raises(CheckpointError, match="log/00000005"):
        newest_gate(RunFolder(folder.storage, "open"))
