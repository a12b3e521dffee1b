"""Flow runs of the deployments: what they show, and what becomes of those that are disturbed."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from evertrain_flows.flow_runs.crash_loops import MAX_CRASHES
from tests.flows.deployment.deployed import (
    HELD,
    Prefect,
    Server,
    all_flow_runs,
    filtered,
    flow_of,
    flow_runs,
    found,
    held,
    log_of,
    message,
    state,
    wait_for,
)
from tests.flows.mlflow_side import shown_at
from tests.rank.digests import digest_of_training
from train_core.storage.coordination import lease
from train_core.storage.run_folder import RunFolder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(420)]

ENDED = {"FAILED", "COMPLETED"}


def test_all_flows_are_deployed_and_nothing_trains_unasked(prefect: Prefect) -> None:
    found = json.loads(prefect("deployment", "inspect", "retrain/retrain", "-o", "json"))
    assert found["schedules"] == []
    assert found["global_concurrency_limit"]["limit"] == 1
    assert found["concurrency_options"]["collision_strategy"] == "ENQUEUE"
    deployed = prefect("deployment", "ls")
    assert "batch-inference/batch-inference" in deployed
    assert "mirror/mirror" in deployed
    assert "rollback/rollback" in deployed


def runs_at(home: Path) -> set[str]:
    return {one.name for one in (home / "runs").glob("[!_]*")}


def test_a_workers_run_is_named_as_asked_or_by_workload_and_time(
    prefect: Prefect, api: str, home: Path
) -> None:
    asked, before = {"run": "nightly-1", "epochs": 1, "batch_size": 64}, runs_at(home)
    for parameters in (asked, {**asked, "run": ""}):
        prefect(
            "deployment", "run", "retrain/retrain", "--flow-run-name", "by-hand",
            "--param", f"parameters={json.dumps(parameters)}", "--watch",
        )  # fmt: skip
    first, second = sorted(runs_at(home) - before)
    (named,) = flow_runs(api, first)
    scheduled = datetime.fromisoformat(named["expected_start_time"]).astimezone(UTC)
    assert first == f"digits-{scheduled:%Y%m%d-%H%M%S}-{named['id'][-6:]}"
    assert RunFolder(str(home / "runs"), first).record().flow_run == named["id"]
    assert second == "nightly-1"
    for run in (first, second):
        report = RunFolder(str(home / "runs"), run).report()
        assert report is not None, (home / "worker.log").read_text()
        assert report["run"] == run


def test_the_flow_runs_page_has_the_artifacts_and_the_workers_log(
    prefect: Prefect, api: str
) -> None:
    artifacts = {one["key"]: str(one["data"]) for one in found(api, "artifacts", "nightly-1")}
    assert set(artifacts) >= {"retrain-progress", "retrain-checkpoints", "retrain-report"}
    assert "step-00000020-a0001" in artifacts["retrain-checkpoints"]
    assert "data:image/png;base64," in artifacts["retrain-report"]
    messages = [one["message"] for one in found(api, "logs", "nightly-1")]
    assert any("epoch 1, step 20: " in message for message in messages)


def test_artifacts_have_one_history_from_run_to_run(prefect: Prefect, api: str) -> None:
    # Those of the two runs above, at least; the newest first.
    listed = filtered(api, "artifacts", artifacts={"key": {"any_": ["retrain-report"]}})
    texts = [one["data"] for one in listed]
    assert len(texts) >= 2
    assert any(
        "Before: run `nightly-1`" in text or "Before: run `digits-" in text for text in texts
    )


@pytest.mark.promise("night-without-news")
def test_without_anything_new_a_night_ends_completed_and_begins_no_run(
    prefect: Prefect, api: str, home: Path
) -> None:
    asked = {"epochs": 1, "batch_size": 64, "seed": 11, "skip_unchanged": True}
    before = runs_at(home)

    def night() -> None:
        parameters = f"parameters={json.dumps(asked)}"
        prefect("deployment", "run", "retrain/retrain", "--param", parameters, "--watch")

    night()
    (first,) = runs_at(home) - before
    night()
    assert runs_at(home) - before == {first}
    newest = all_flow_runs(api)[-1]
    assert newest["state_type"] == "COMPLETED"
    told = f"no new data since run {first}: nothing is trained"
    assert newest["state"]["message"] == told
    assert newest["name"].startswith("digits-")
    assert shown_at(f"sqlite:///{home}/mlflow.db", f"{home}/runs/{newest['name']}") == {}


def test_a_flow_run_that_is_retried_continues_its_run_under_its_name(
    prefect: Prefect, api: str, home: Path
) -> None:
    (first, *_) = [one for one in all_flow_runs(api) if one["name"].startswith("digits-")]
    before = runs_at(home)
    prefect("flow-run", "retry", first["id"])
    wait_for(lambda: flow_runs(api, first["name"])[0]["run_count"] == 2, home)
    wait_for(lambda: state(api, first["name"]) == "COMPLETED", home)
    assert runs_at(home) == before


def test_the_best_checkpoint_scores_data_in_a_flow_of_its_own(prefect: Prefect) -> None:
    shown = prefect(
        "deployment", "run", "batch-inference/batch-inference",
        "--param", 'run="nightly-1"', "--param", 'infer_input="validation"', "--watch",
    )  # fmt: skip
    assert "finished" in shown.lower()


def test_what_an_mlflow_missed_is_sent_by_a_flow_of_its_own(prefect: Prefect, home: Path) -> None:
    # One that was down all the time.
    another = f"sqlite:///{home}/another.db"
    shown = prefect(
        "deployment", "run", "mirror/mirror", "--param", 'run="nightly-1"',
        "--param", f"tracking_uri={json.dumps(another)}", "--watch",
    )  # fmt: skip
    assert "finished" in shown.lower()
    url = RunFolder(str(home / "runs"), "nightly-1").url
    assert shown_at(another, url) == shown_at(f"sqlite:///{home}/mlflow.db", url)


def test_mnist_is_learned(prefect: Prefect, home: Path, real_data: Path) -> None:
    # How good it gets in a whole epoch is a figure of `make bench-pipeline`.
    parameters = {
        "run": "mnist",
        "workload": "train_core.workloads.mnist:MnistResNet18",
        "settings": {"data": str(real_data / "mnist")},
        "num_workers": 2,
        "max_steps": 120,
    }
    prefect(
        "deployment", "run", "retrain/retrain",
        "--param", f"parameters={json.dumps(parameters)}", "--watch",
    )  # fmt: skip
    report = RunFolder(str(home / "runs"), "mnist").report()
    assert report is not None, (home / "worker.log").read_text()
    assert report["train"]["step"] == 120
    assert report["test_metrics"]["accuracy"] >= 0.9


def kill_flow(folder: RunFolder, attempt: int, home: Path) -> None:
    """Kill the flow's process as soon as its driver has that attempt."""
    store = folder.store
    wait_for(lambda: lease.newest_attempt(store) == attempt and lease.holder_of(store), home)
    flow_of(folder).kill()


@pytest.mark.promise("automation")
def test_a_run_whose_process_dies_is_run_again_by_the_automation(
    prefect: Prefect, api: str, home: Path, undisturbed: str
) -> None:
    with held(prefect, home, "crashed") as (folder, go_on):
        flow_of(folder).kill()
        go_on.touch()
        wait_for(lambda: folder.report() is not None, home)
        wait_for(lambda: state(api, "crashed") == "COMPLETED", home)
    assert digest_of_training(folder) == undisturbed
    newest = folder.checkpoints()[-1]
    assert (newest.manifest.step, newest.name.attempt) == (60, 2)


def test_a_run_that_dies_again_and_again_is_given_up_and_goes_on_when_it_is_asked_anew(
    prefect: Prefect, api: str, home: Path, undisturbed: str
) -> None:
    with held(prefect, home, "endless") as (folder, go_on):
        # What the first run of it commits is the last that comes of it.
        wait_for(folder.checkpoints, home)
        for attempt in range(1, MAX_CRASHES + 2):
            kill_flow(folder, attempt, home)
        wait_for(lambda: state(api, "endless") == "FAILED", home)
        assert f"{MAX_CRASHES} times in a row without a new checkpoint" in message(api, "endless")
        tracking_uri = f"sqlite:///{home}/mlflow.db"
        assert shown_at(tracking_uri, folder.url)["pipeline"]["status"] == "FAILED"
        go_on.touch()
        asked = json.dumps({"run": "endless", **HELD})
        prefect("deployment", "run", "retrain/retrain", "--param", f"parameters={asked}")
        wait_for(lambda: {one["state_type"] for one in flow_runs(api, "endless")} == ENDED, home)
    assert digest_of_training(folder) == undisturbed
    assert shown_at(tracking_uri, folder.url)["pipeline"]["status"] == "FINISHED"


@pytest.mark.promise("cancel")
def test_a_run_that_is_cancelled_saves_and_goes_on_later(
    prefect: Prefect, api: str, home: Path, undisturbed: str
) -> None:
    with held(prefect, home, "cancelled") as (folder, go_on):
        (flow_run,) = flow_runs(api, "cancelled")
        prefect("flow-run", "cancel", flow_run["id"])
        wait_for(lambda: "asked to stop: " in log_of(api, "cancelled"), home)
        go_on.touch()
        wait_for(lambda: state(api, "cancelled") == "CANCELLED", home)
        assert lease.holder_of(folder.store) is None
        shown = shown_at(f"sqlite:///{home}/mlflow.db", folder.url)
        assert shown["pipeline"]["status"] == "KILLED"
        last = folder.checkpoints()[-1].manifest
        assert (31 < last.step < 60, last.stopped_by) == (True, "request")
        # It was wanted, so nothing of it is an error.
        assert "Crash detected" not in log_of(api, "cancelled")
        assert "Traceback" not in log_of(api, "cancelled")
        printed = (home / "worker.log").read_text()
        assert "Finished in state Cancelled" in printed
        assert not [line for line in printed.splitlines() if "ERROR" in line and "Cancel" in line]
        assert "CancelledRun" not in printed
        # Prefect says so twice; the second time, a retry before it would be undone.
        wait_for(lambda: "successfully" in message(api, "cancelled"), home)
        prefect("flow-run", "retry", flow_run["id"])
        wait_for(lambda: state(api, "cancelled") == "COMPLETED", home)
    # Prefect may crash it once more, over the slot of the deployment's limit that it has just given
    # free, and the automation run it again: how many attempts there were is not ours to say.
    assert folder.checkpoints()[-1].manifest.step == 60
    assert digest_of_training(folder) == undisturbed


def test_a_run_survives_a_restart_of_the_server(
    prefect: Prefect, server: Server, home: Path, undisturbed: str
) -> None:
    with held(prefect, home, "serverless") as (folder, go_on):
        server.stop()
        go_on.touch()
        wait_for(lambda: (folder.live() or {}).get("step", 0) >= 45, home)
        server.start()
        wait_for(lambda: folder.report() is not None, home)
        wait_for(lambda: state(server.url, "serverless") == "COMPLETED", home)
    assert digest_of_training(folder) == undisturbed
    newest = folder.checkpoints()[-1]
    assert (newest.manifest.step, newest.name.attempt) == (60, 1)
