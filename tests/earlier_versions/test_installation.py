"""What a machine has after a week with an earlier version is carried on by this one.

`make_installation.py` made it, by commit de806b6. Each test has a copy of its own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import mlflow.pyfunc
import numpy as np
import psutil
import pyarrow.parquet as pq
import pytest
from mlflow import MlflowClient

from evertrain_flows.cli.app import main
from tests.earlier_versions.installed import MODEL, WRITTEN, Installation
from tests.earlier_versions.make_installation import outcome_of, processor
from tests.flows.mlflow_side import mlflow_client, runs_in
from train_core.client.champions import approve, champions, rollback, versions
from train_core.client.checkpoints import verify_run
from train_core.client.run import Run
from train_core.client.run_summaries import list_runs, run_status
from train_core.client.runs import fork_run, prune_run, retention_rules
from train_core.errors import ConfigError, RunBusyError
from train_core.loading import load_workload
from train_core.policy.checkpoints.retention import RetentionRules
from train_core.rank.data.recorded_workload import with_monitor
from train_core.rank.distributed.group import Group
from train_core.rank.loop import Trainer
from train_core.results import GateResult, ModelVersion
from train_core.storage.predictions import committed_predictions
from train_core.storage.records.manifest import EvaluationManifest
from train_core.storage.records.names import EVALUATIONS
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import begin_attempt, create_run
from train_core.timing import TIMING
from train_core.tools.provenance import fingerprint
from train_core.tracking.delivery.catch_up import catch_up
from train_core.tracking.mlflow.models.registered import show_aliases

pytestmark = pytest.mark.promise("earlier-versions")

VERSIONS = {"monday": 1, "tuesday": 2, "wednesday": 3, "thursday": 4}
ANSWER = ("--reason", "looked at it", "--by", "bob")
IMPATIENT = replace(TIMING.coordination, standstill_s=0.6, dying_grace_s=0.2)
"""The driver of `half` died on a machine that is gone, so its heartbeat is observed first."""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Installation]:
    found = Installation.copied(tmp_path / "home")
    with monkeypatch.context() as patched:
        patched.syspath_prepend(str(found.home / "project"))
        patched.setenv("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
        yield found
    for module in ("nightly", "slices"):
        sys.modules.pop(module, None)


def train_to_the_end(folder: RunFolder) -> None:
    """What the next attempt does, in this process."""
    config = folder.newest_request().config
    held = begin_attempt(folder, timing=IMPATIENT)
    Trainer(folder, with_monitor(config), held.attempt, Group.current()).run()
    held.release()


def undisturbed(place: Installation, folder: RunFolder) -> dict[str, str]:
    """How a run ends that nobody kills: as that version ended it, where this processor can tell.

    Another processor may end with other bits: there the same run is trained anew. If its bits are
    others, the test is skipped: the first half of the killed run was computed elsewhere.
    """
    ended: dict[str, str] = json.loads((place.home / "undisturbed.json").read_text())
    record = folder.record()
    here = fingerprint(record.config)
    is_same = processor() == ended.pop("processor") and here.items() >= record.fingerprint.items()
    if is_same:
        return ended
    print(f"compared with a training on this machine ({processor()}, {here})")  # noqa: T201
    anew = RunFolder(f"{place.storage}-anew", folder.name)
    create_run(anew, record)
    train_to_the_end(anew)
    found = outcome_of(Path(anew.url))
    if found | {"checkpoint": ""} != ended | {"checkpoint": ""}:
        pytest.skip(f"{processor()} ends with other bits than what trained the first half")
    return found


def least(folder: RunFolder) -> RetentionRules:
    """The rules that keep as little as there may be."""
    return retention_rules(folder, {"keep_last": 1, "keep_best": 1})


def status_of_versions(place: Installation) -> dict[str, str]:
    found = {}
    for version, decided in versions(place.storage, MODEL):
        assert isinstance(version, ModelVersion)
        assert isinstance(decided, GateResult)
        found[version.run] = decided.status
    return found


def served_by(place: Installation) -> str:
    """The run of the version that MLflow's alias points to."""
    with mlflow_client(place.tracking_uri) as client:
        run: str = client.get_model_version_by_alias(MODEL, "champion").tags["evertrain.run"]
        return run


def points(client: MlflowClient, run_id: str) -> Counter[tuple[str, int]]:
    """How often MLflow shows each metric's step."""
    keys = client.get_run(run_id).data.metrics
    shown = (point for key in keys for point in client.get_metric_history(run_id, key))
    return Counter((point.key, point.step) for point in shown)


def test_all_runs_are_listed(place: Installation) -> None:
    runs = {run.run: run for run in list_runs(place.storage)}
    assert {name: (run.workload, run.step) for name, run in runs.items()} == {
        "monday": ("Digits", 40),
        "tuesday": ("Digits", 60),
        "wednesday": ("Digits", 60),
        "thursday": ("Digits", 60),
        "half": ("Nightly", 49),
        "counted": ("nightly:count", 3),
    }
    for run in ("monday", "tuesday", "wednesday"):
        assert runs[run].state == "finished"
    # Of a process on another machine, a list cannot know that it is dead.
    assert {runs[run].state for run in ("half", "counted")} == {"running"}
    assert runs["monday"].test == pytest.approx(0.25)
    assert runs["monday"].samples == 1257


def test_a_run_is_shown_with_its_metrics_and_checkpoints(place: Installation) -> None:
    half = Run(place.run("half"))
    status = run_status(half)
    assert (status.step, status.checkpoints) == (49, 4)
    assert str(status.driven_by).endswith("on night-1")
    # What no checkpoint covers was not kept.
    assert list(half.metrics["train/loss"].dropna().index) == list(range(1, 50))
    assert [one.step for one in half.checkpoints] == [20, 40, 42, 49]
    assert (half.best().step, half.at(42).epoch) == (40, 2)
    counted = Run(place.run("counted"))
    assert list(counted.metrics["loss"].dropna()) == [1, 1 / 2, 1 / 3]
    with counted.latest().as_directory() as folder:
        assert json.loads(Path(folder, "counted.json").read_text()) == {"reached": 3}


@pytest.mark.parametrize("run", [*VERSIONS, "half", "counted"])
def test_every_byte_of_a_run_is_verified(place: Installation, run: str) -> None:
    verdicts = list(verify_run(place.run(run)))
    assert verdicts
    assert {one.what: one.faults for one in verdicts if one.faults} == {}


def test_predictions_and_evaluations_are_read(place: Installation) -> None:
    for run in VERSIONS:
        folder = place.run(run)
        (predictions,) = committed_predictions(folder)
        table = pq.ParquetDataset(sorted(Path(predictions.uri).glob("*.parquet"))).read()
        assert (predictions.num_rows, table.num_rows) == (360, 360)
        above = [f"{EVALUATIONS}/{one.name}" for one in folder.checkpoints()]
        evaluations = [one for key in above for _, one in folder.results(key, EvaluationManifest)]
        assert {(one.split, one.num_samples) for one in evaluations} == {
            ("validation", 180),
            ("test", 360),
        }


def test_a_killed_training_ends_with_the_bits_of_one_that_nobody_killed(
    place: Installation,
) -> None:
    folder = place.run("half")
    expected = undisturbed(place, folder)
    train_to_the_end(folder)
    assert outcome_of(Path(folder.url)) == expected | {"checkpoint": "step-00000080-a0002"}
    assert {one.what: one.faults for one in verify_run(folder) if one.faults} == {}


def test_a_fork_of_a_killed_training_ends_with_the_same_bits(place: Installation) -> None:
    folder = place.run("half")
    fork = fork_run(folder, 42, "fork").folder
    train_to_the_end(fork)
    expected = undisturbed(place, folder)
    found = outcome_of(Path(fork.url))
    assert found | {"checkpoint": ""} == expected | {"checkpoint": ""}


def test_a_training_goes_on_in_the_same_mlflow_run_without_doubles(place: Installation) -> None:
    folder = place.run("half")
    before = {run.info.run_id for run in runs_in(place.tracking_uri, "/srv/evertrain/runs/half")}
    before |= {run.info.run_id for run in runs_in(place.tracking_uri, folder.url)}
    train_to_the_end(folder)
    catch_up(folder, place.tracking_uri)
    with mlflow_client(place.tracking_uri) as client:
        shown = sum((points(client, run) for run in before), Counter[tuple[str, int]]())
    losses = {key: times for key, times in shown.items() if key[0] == "train/loss"}
    assert losses == {("train/loss", step): 1 for step in range(1, 81)}
    assert {run.info.run_id for run in runs_in(place.tracking_uri, folder.url)} == before


def test_a_finished_run_that_is_mirrored_again_adds_no_point_no_model_and_no_run(
    place: Installation,
) -> None:
    def shown() -> Any:
        runs = runs_in(place.tracking_uri, place.run("monday").url)
        with mlflow_client(place.tracking_uri) as client:
            experiments = {run.info.experiment_id for run in runs}
            models = client.search_logged_models(sorted(experiments))
            registered = client.search_model_versions(f"name='{MODEL}'")
            return (
                {run.info.run_id: points(client, run.info.run_id) for run in runs},
                sorted(model.model_id for model in models),
                sorted((one.version, one.tags["evertrain.run"]) for one in registered),
            )

    before = shown()
    assert before[0]
    catch_up(place.run("monday"), place.tracking_uri)
    assert shown() == before


@pytest.mark.parametrize("run", VERSIONS)
def test_a_registered_model_serves_what_the_batch_inference_of_that_time_predicted(
    place: Installation, run: str
) -> None:
    with mlflow_client(place.tracking_uri) as client:
        uri = client.get_model_version_download_uri(MODEL, str(VERSIONS[run]))
    served = mlflow.pyfunc.load_model(uri)
    workload = load_workload("train_core.workloads.digits:Digits", {"width": 2})
    images = workload.dataset("test")
    raw = images.__getitems__(np.arange(len(images)))["image"]
    found = served.predict({"image": raw})
    (predictions,) = committed_predictions(place.run(run))
    stored = pq.ParquetDataset(sorted(Path(predictions.uri).glob("*.parquet"))).read().to_pydict()
    assert found["prediction"].tolist() == stored["prediction"]
    probabilities = np.array(found["probabilities"].tolist())
    np.testing.assert_allclose(probabilities, np.array(stored["probabilities"]), atol=1e-5)


def test_the_history_of_champions_is_told(place: Installation) -> None:
    found = [
        (one.number, one.version.run, one.by)
        for one in place.log.read().entries
        if one in champions(place.storage, MODEL)
    ]
    assert found == [
        (1, "monday", "gate"),
        (2, "wednesday", "gate"),
        (3, "monday", "rollback"),
    ]
    assert status_of_versions(place) == {
        "monday": "became champion",
        "tuesday": "rejected",
        "wednesday": "became champion",
        "thursday": "waits for approval",
    }
    assert served_by(place) == "monday"


@pytest.mark.slow
def test_the_version_that_waits_is_approved_and_gone_back_from(place: Installation) -> None:
    where = ("--storage", place.storage, "--tracking-uri", place.tracking_uri)
    assert main(["approve", MODEL, "4", *ANSWER, *where]) == 0
    assert [one.version.run for one in place.log.read().entries][-1] == "thursday"
    assert served_by(place) == "thursday"
    entry = rollback(place.storage, MODEL, "it was better")
    assert entry.version.run == "monday"
    with mlflow_client(place.tracking_uri) as client:
        show_aliases(client, place.log)
    assert served_by(place) == "monday"


def test_the_version_that_was_rejected_stays_rejected(place: Installation) -> None:
    for champion in ("monday", "wednesday"):
        assert place.log.read().entries[-1].version.run == champion
        with pytest.raises(ConfigError, match="models:/Digits/2"):
            approve(place.storage, MODEL, VERSIONS["tuesday"], "why not")
        assert status_of_versions(place)["tuesday"] == "rejected"
        if champion == "monday":
            rollback(place.storage, MODEL, "it was better", to=VERSIONS["wednesday"])


def test_pins_of_the_dead_keep_nothing_once_they_are_known_to_be_dead(place: Installation) -> None:
    folder = place.run("wednesday")
    prune_run(folder, rules=least(folder))
    # The job's calls are cleared away; a process of another machine may live.
    assert [one.step for one in folder.checkpoints()] == [20, 60]
    prune_run(folder, rules=least(folder), ignore_pins_elsewhere=True)
    assert [one.step for one in folder.checkpoints()] == [60]


def of_this_machine(folder: RunFolder, key: str, pid: int, started: float) -> None:
    """Have the document be of a process of this machine, as that version wrote it."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    machine = f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    written = json.loads(folder.store.read(key))
    holder = written.get("holder", written)
    holder.update(machine=machine, pid=pid, process_started=started)
    folder.store.write(key, json.dumps(written).encode())


@pytest.fixture
def process() -> Iterator[psutil.Process]:
    """A process of this machine that lives."""
    with subprocess.Popen(["sleep", "1000"]) as started:
        yield psutil.Process(started.pid)
        started.kill()


def test_a_run_that_a_process_of_that_version_drives_is_not_taken_until_it_dies(
    place: Installation, process: psutil.Process
) -> None:
    folder = place.run("half")
    of_this_machine(folder, "lease/0001.json", process.pid, process.create_time())
    with pytest.raises(RunBusyError, match=f"process {process.pid} on night-1"):
        begin_attempt(folder, timing=IMPATIENT)
    assert run_status(Run(folder)).state == "running"
    process.kill()
    process.wait()
    assert run_status(Run(folder)).state == "interrupted"
    begin_attempt(folder).release()


def test_a_pin_of_a_process_of_that_version_holds_until_it_dies(
    place: Installation, process: psutil.Process
) -> None:
    folder = place.run("wednesday")
    pin = "pins/step-00000020-a0001/infer-0badcafe.json"
    of_this_machine(folder, pin, process.pid, process.create_time())
    prune_run(folder, rules=least(folder))
    assert [one.step for one in folder.checkpoints()] == [20, 60]
    process.kill()
    process.wait()
    prune_run(folder, rules=least(folder))
    assert [one.step for one in folder.checkpoints()] == [60]


def test_what_was_written_is_small() -> None:
    files = [file for file in WRITTEN.rglob("*") if file.is_file()]
    assert sum(file.stat().st_size for file in files) < 3_000_000
