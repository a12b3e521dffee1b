"""`evertrain runs list`: what a run came to, on which data, whatever else lies there."""

from __future__ import annotations

import json

import pytest

from evertrain_flows.cli.app import main
from tests.champion.samples import add_events, approval, decision, register, version, write_earlier
from tests.rank.alone import create
from tests.storage.samples import manifest
from train_core import TrainConfig
from train_core.client.run_summaries import folded, list_runs, run_status
from train_core.policy.champion.gate_decision import Outcome
from train_core.requests import RecordedPipeline, SearchTrial
from train_core.storage.coordination.stop_request import SCHEDULER, ask_to_stop
from train_core.storage.objects.store import Store
from train_core.storage.records.amendments import Amendment
from train_core.storage.records.names import REPORT_JSON, RUN_JSON
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt

DATA = {"train": {"samples": 150, "digest": "abcdef0123456789" * 4}, "test": {"samples": 40}}


def trained(storage: str, name: str) -> RunFolder:
    """A run whose training and report are done."""
    folder = RunFolder(storage, name)
    create(folder, TrainConfig())
    record = folder.record().model_copy(update={"datasets": DATA})
    folder.store.write(RUN_JSON, record.model_dump_json().encode())
    RunWriter(folder, 1).commit(
        manifest(7).model_copy(update={"epoch": record.config.epochs, "stopped_by": "epochs"})
    )
    report = {"train": {"step": 7}, "test_metrics": {"accuracy": 0.75, "loss": 1.0}}
    folder.store.write(REPORT_JSON, json.dumps(report).encode())
    return folder


@pytest.mark.promise("runs-list")
def test_a_run_is_listed_with_what_the_test_split_said_and_its_data(
    storage_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(storage_url, "nightly")
    assert main(["runs", "list", "--storage", storage_url, "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["best"], row["test"], row["metric"]) == (0.5, 0.75, "validation/accuracy")
    assert (row["samples"], row["data"], row["state"]) == (150, "abcdef01", "finished")


@pytest.mark.parametrize(
    ("end", "state"), [("", "interrupted"), ("KILLED", "interrupted"), ("FAILED", "failed")]
)
def test_a_run_that_was_extended_and_ended_before_its_next_commit_is_not_finished(
    storage_url: str, end: str, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = trained(storage_url, "nightly")
    asked = folder.newest_request()
    more = asked.config.model_copy(update={"epochs": asked.config.epochs + 1})
    held = begin_attempt(folder)
    RunWriter(folder, held.attempt).amend(asked.model_copy(update={"config": more}))
    held.end = end
    held.release()
    for command in (["list"], ["status", "nightly"]):
        assert main(["runs", *command, "--storage", storage_url, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert (found[0] if command == ["list"] else found)["state"] == state


def ask(folder: RunFolder, *, is_before: bool = False) -> None:
    """The gate asks a person about the run's version."""
    made = decision(version(1, folder.name), outcome=Outcome.ASK)
    if is_before:
        write_earlier(folder.storage, made)
    else:
        register(folder, made.challenger)
        add_events(folder.storage, made)


def answer(folder: RunFolder, *, is_approved: bool, is_before: bool = False) -> None:
    made = decision(version(1, folder.name), outcome=Outcome.ASK)
    given = approval(made, is_approved=is_approved)
    (write_earlier if is_before else add_events)(folder.storage, given)


def released(folder: RunFolder, end: str) -> None:
    held = begin_attempt(folder)
    held.end = end
    held.release()


def more_epochs(folder: RunFolder) -> None:
    asked = folder.newest_request()
    more = asked.config.model_copy(update={"epochs": asked.config.epochs + 1})
    held = begin_attempt(folder)
    RunWriter(folder, held.attempt).amend(asked.model_copy(update={"config": more}))
    held.release()


def state_of(folder: RunFolder) -> str:
    (row,) = list_runs(folder.storage)
    assert run_status(folder).state == row.state
    return row.state


@pytest.mark.promise("approval-followed")
@pytest.mark.parametrize("is_before", [False, True], ids=["log", "before"])
@pytest.mark.parametrize("has_report", [True, False])
def test_a_run_whose_version_a_person_has_to_approve_is_waiting(
    storage_url: str, has_report: bool, is_before: bool
) -> None:
    folder = trained(storage_url, "nightly")
    if not has_report:
        # A flow run that is suspended has none yet.
        folder.store.delete(REPORT_JSON)
    ask(folder, is_before=is_before)
    # It is suspended as one that is stopped.
    released(folder, "KILLED")
    assert state_of(folder) == "waiting"
    released(folder, "FAILED")
    assert state_of(folder) == ("finished" if has_report else "failed")
    released(folder, "KILLED")
    answer(folder, is_approved=False, is_before=is_before)
    assert state_of(folder) == ("finished" if has_report else "answered")
    more_epochs(folder)
    assert state_of(folder) == "interrupted"


def test_a_run_that_is_trained_further_waits_no_more(storage_url: str) -> None:
    folder = trained(storage_url, "nightly")
    ask(folder)
    more_epochs(folder)
    assert state_of(folder) == "interrupted"


@pytest.mark.promise("runs-list")
@pytest.mark.parametrize(
    ("end", "state"),
    [
        ("FINISHED", "finished"),
        ("KILLED", "interrupted"),
        ("FAILED", "failed"),
        ("", "interrupted"),
    ],
)
def test_a_training_without_a_pipeline_is_finished_by_its_own_end(
    storage_url: str, end: str, state: str
) -> None:
    """`fit` writes no report."""
    folder = trained(storage_url, "fitted")
    folder.store.delete(REPORT_JSON)
    released(folder, end)
    assert state_of(folder) == state
    more_epochs(folder)
    assert state_of(folder) == ("failed" if end == "FAILED" else "interrupted")


@pytest.mark.promise("runs-list")
def test_a_run_that_cannot_be_read_is_listed_as_such_and_hides_no_other(
    storage_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    trained(storage_url, "good")
    torn, damaged = trained(storage_url, "torn"), trained(storage_url, "damaged")
    torn.store.write(RUN_JSON, b'{"format": 1')
    damaged.store.write(REPORT_JSON, b"[")
    trained(storage_url, "newer").store.write(RUN_JSON, b'{"format": 9}')
    begun = RunFolder(storage_url, "begun")
    create(begun, TrainConfig())
    Store(storage_url).write("notes.txt", b"no run")
    assert main(["runs", "list", "--storage", storage_url, "--json"]) == 0
    states = {row["run"]: row["state"] for row in json.loads(capsys.readouterr().out)}
    assert states.keys() == {"good", "torn", "damaged", "newer", "begun"}
    assert (states["good"], states["begun"]) == ("finished", "interrupted")
    for name, message in (("torn", RUN_JSON), ("damaged", REPORT_JSON), ("newer", "has format 9")):
        assert states[name].startswith("cannot be read: ")
        assert message in states[name]


@pytest.mark.promise("tune-shown")
def test_the_trials_of_a_search_are_one_line_of_the_list(
    storage_url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):
        folder = trained(storage_url, f"lr-{number}")
        trial = SearchTrial(search="lr", trial=str(number))
        record = folder.record().model_copy(update={"search": trial})
        folder.store.write(RUN_JSON, record.model_dump_json().encode())
    trained(storage_url, "nightly")
    (lr, nightly) = folded(list_runs(storage_url))
    assert (lr.run, lr.best, nightly.run) == ("lr", 0.5, "nightly")
    assert lr.state == "2 runs: 2 finished"
    assert main(["runs", "list", "--storage", storage_url]) == 0
    shown = capsys.readouterr().out
    assert "lr-1" not in shown
    assert main(["runs", "list", "--storage", storage_url, "--trials"]) == 0
    assert "lr-1" in capsys.readouterr().out
    assert main(["runs", "list", "--storage", storage_url, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [one.get("search") for one in rows] == ["lr", "lr", None]


@pytest.mark.promise("tune-stopped")
def test_a_run_that_the_scheduler_has_ended_is_listed_so(storage_url: str) -> None:
    folder = RunFolder(storage_url, "trial")
    create(folder, TrainConfig())
    held = begin_attempt(folder)
    ask_to_stop(folder.store, held.attempt, "Ray Tune ends the trial", SCHEDULER)
    held.end = "KILLED"
    held.release()
    assert run_status(folder).state == "stopped by the scheduler"


@pytest.mark.parametrize("end", ["", "KILLED"])
@pytest.mark.promise("tune-stopped")
def test_a_trial_whose_training_is_over_is_finished_however_its_driver_ended(
    storage_url: str, end: str
) -> None:
    folder = trained(storage_url, "trial")
    folder.store.delete(REPORT_JSON)
    held = begin_attempt(folder)
    ask_to_stop(folder.store, held.attempt, "Ray Tune ends the trial", SCHEDULER)
    held.end = end
    held.release()
    record = folder.record()
    trial = record.model_copy(update={"search": SearchTrial(search="lr", trial="1")})
    folder.store.write(RUN_JSON, trial.model_dump_json().encode())
    assert run_status(folder).state == "finished"
    # A pipeline that goes on with it has more to do.
    request = RecordedPipeline(infer_input="test")
    held = begin_attempt(folder)
    RunWriter(folder, held.attempt).amend(
        Amendment(config=trial.config, pipeline=request.model_dump())
    )
    held.release()
    assert run_status(folder).state == "interrupted"
