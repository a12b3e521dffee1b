"""What MLflow missed of a run is sent afterwards, once, by whoever asks for it."""

from __future__ import annotations

import shutil
import time
from pathlib import Path

import pytest
from mlflow.entities import Run

from tests.champion.samples import decide, decision
from tests.tracking.conftest import MlflowServer
from tests.tracking.delivery.test_mirror import expected, mirror_once, points, stages
from tests.tracking.run_builder import RunBuilder
from train_core.client.champions import approve
from train_core.client.isolated import mirror_run
from train_core.errors import RunBusyError, StageError, TrackingError
from train_core.loading import load_workload
from train_core.policy.champion.gate_decision import Outcome
from train_core.policy.end_status import EndStatus
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt
from train_core.tracking.afterwards import show_gate_at
from train_core.tracking.delivery.catch_up import catch_up
from train_core.tracking.delivery.mirror import Mirror


@pytest.mark.promise("mirror")
def test_what_was_missed_is_sent_and_what_is_there_is_not(
    run: RunBuilder, tracking_uri: str
) -> None:
    run.commit(range(1, 30))
    mirror_once(run, tracking_uri, EndStatus.FAILED)
    run.new_attempt()
    run.commit(range(30, 60))
    run.lease.release()
    before = stages(tracking_uri)
    for _ in range(2):
        tracking = catch_up(run.folder, tracking_uri)
        assert tracking.run_id == before["pipeline"].info.run_id
        assert points(tracking_uri) == expected(range(1, 60))
        after = stages(tracking_uri)
        # It has no report, and MLflow knows how it ended, and when.
        assert {name: stage.info.status for name, stage in after.items()} == {"pipeline": "FAILED"}
        for name, stage in after.items():
            assert stage.info.end_time == before[name].info.end_time
            assert system_metrics(stage) == system_metrics(before[name])


def system_metrics(stage: Run) -> dict[str, float]:
    return {key: value for key, value in stage.data.metrics.items() if key.startswith("system/")}


def test_a_run_that_failed_says_why_in_the_first_line_of_its_description_until_it_goes_on(
    run: RunBuilder, tracking_uri: str
) -> None:
    why = "prepare: KeyError: 'no_such_column' (train.py, line 12, in dataset)"
    for status, says in ((EndStatus.FAILED, why), (EndStatus.FINISHED, "")):
        run.new_attempt()
        mirror = Mirror(run.folder, tracking_uri, "tests")
        mirror.start()
        assert mirror.close(status, why=says)
        tags = stages(tracking_uri)["pipeline"].data.tags
        first = tags["mlflow.note.content"].partition("\n")[0]
        assert (first == f"- **Failed**: {why}") is bool(says), first
        assert tags["evertrain.failure"] == why


def test_a_training_that_ended_unseen_is_shown_as_ended(run: RunBuilder, tracking_uri: str) -> None:
    run.commit(range(1, 30), finished=True)
    run.lease.release()
    catch_up(run.folder, tracking_uri)
    assert {name: stage.info.status for name, stage in stages(tracking_uri).items()} == {
        "pipeline": "KILLED"
    }


def test_a_training_that_failed_unseen_is_shown_as_failed(
    run: RunBuilder, tracking_uri: str
) -> None:
    run.commit(range(1, 30))
    run.lease.end = EndStatus.FAILED
    run.lease.release()
    empty = Path(tracking_uri.removeprefix("sqlite:///"))
    another = f"sqlite:///{shutil.copy(empty, empty.with_name('another.db'))}"
    for uri in (tracking_uri, another, tracking_uri):
        catch_up(run.folder, uri)
        assert {stage.info.status for stage in stages(uri).values()} == {"FAILED"}


@pytest.mark.promise("approval-followed")
def test_a_run_that_waits_for_a_person_is_scheduled_and_says_so_until_it_has_the_answer(
    run: RunBuilder, tracking_uri: str
) -> None:
    asked = run.folder.newest_request().config
    model = load_workload(asked.workload, asked.settings).model()
    best = run.commit(range(1, 30), finished=True, model=model)
    version = run.register(best)
    made = decision(version, outcome=Outcome.ASK)
    decide(run.folder, made)
    # Its flow run is suspended as one that is stopped.
    mirror_once(run, tracking_uri, EndStatus.KILLED)
    run.lease.end = EndStatus.KILLED
    run.lease.release()

    def shown() -> tuple[str, str, str]:
        parent = stages(tracking_uri)["pipeline"]
        gate, _, _, ended, _ = parent.data.tags["mlflow.note.content"].splitlines()
        return parent.info.status, gate, ended

    waiting = f"{version.address} waits for approval"
    for _ in range(2):
        status, gate, ended = shown()
        assert status == "SCHEDULED"
        assert gate.startswith(f"- **Gate**: {waiting}")
        assert ended.startswith("- **Waiting**: for a person's answer, step 29")
        catch_up(run.folder, tracking_uri)
    approve(run.folder.storage, "Digits", version.version, "fine", is_approved=False, person="ann")
    show_gate_at(run.folder.url, "Digits", version.version, tracking_uri)
    # It has stages left.
    assert shown()[:2] == (
        "SCHEDULED",
        f'- **Gate**: {version.address} is rejected by ann ("fine"): {made.why}',
    )
    run.report(best)
    show_gate_at(run.folder.url, "Digits", version.version, tracking_uri)
    assert shown()[0] == "FINISHED"


def test_a_fit_that_ended_unseen_is_shown_as_finished(run: RunBuilder, tracking_uri: str) -> None:
    run.commit(range(1, 30), finished=True)
    run.lease.end = EndStatus.FINISHED
    run.lease.release()
    catch_up(run.folder, tracking_uri)
    assert stages(tracking_uri)["pipeline"].info.status == "FINISHED"


@pytest.mark.slow
def test_a_run_that_was_extended_and_failed_unseen_is_shown_as_failed(
    run: RunBuilder, tracking_uri: str
) -> None:
    asked = run.folder.newest_request()
    model = load_workload(asked.config.workload, asked.config.settings).model()
    best = run.commit(range(1, 30), finished=True, model=model)
    run.report(best)
    run.lease.release()
    catch_up(run.folder, tracking_uri)
    assert stages(tracking_uri)["pipeline"].info.status == "FINISHED"
    run.lease = begin_attempt(run.folder)
    more = asked.config.model_copy(update={"epochs": asked.config.epochs + 1})
    RunWriter(run.folder, run.lease.attempt).amend(asked.model_copy(update={"config": more}))
    # It dies with what it has begun.
    dying = Mirror(run.folder, tracking_uri, "tests")
    dying.start()
    assert dying.flush()
    dying.close(None)
    assert stages(tracking_uri)["pipeline"].info.status == "RUNNING"
    run.lease.end = EndStatus.FAILED
    run.lease.release()
    catch_up(run.folder, tracking_uri)
    assert stages(tracking_uri)["pipeline"].info.status == "FAILED"


def test_what_cannot_be_shown_is_told(run: RunBuilder, tracking_uri: str) -> None:
    best = run.commit(range(1, 30), finished=True)
    run.report(best)
    run.folder.store.delete(f"evaluations/{best.name}/test")
    run.lease.release()
    with pytest.raises(TrackingError, match=r"has not all of run 'digits-1' .*FileNotFoundError"):
        catch_up(run.folder, tracking_uri)


def test_a_run_that_is_driven_has_a_mirror_already(run: RunBuilder, tracking_uri: str) -> None:
    run.commit(range(1, 30))
    with pytest.raises(RunBusyError, match="is being driven by process"):
        catch_up(run.folder, tracking_uri)


@pytest.mark.slow
def test_a_server_that_is_down_is_an_error_within_seconds(
    run: RunBuilder, server: MlflowServer
) -> None:
    run.commit(range(1, 30))
    run.lease.release()
    server.stop()
    begin = time.monotonic()
    with pytest.raises(TrackingError, match="has not all of run 'digits-1'"):
        catch_up(run.folder, server.uri)
    assert time.monotonic() - begin < 60


@pytest.mark.slow
def test_the_isolated_call_raises_what_the_other_process_did(
    run: RunBuilder, tracking_uri: str
) -> None:
    # Driven by this very process.
    with pytest.raises(RunBusyError, match="driven by process"):
        mirror_run(run.folder, tracking_uri)
    with pytest.raises(StageError, match="FileNotFoundError") as raised:
        mirror_run(RunFolder(run.folder.storage, "another"), tracking_uri)
    assert "catch_up" in raised.value.traceback
