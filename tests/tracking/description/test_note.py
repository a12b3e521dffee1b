"""What MLflow's pages say of a run in words, and which view they open in."""

from __future__ import annotations

from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.entities import Run

from tests.tracking.delivery.test_mirror import mirror_once, points, stages
from tests.tracking.following import mirrored
from tests.tracking.run_builder import RunBuilder, entry
from train_core.config import TrainConfig
from train_core.policy.end_status import EndStatus
from train_core.storage.run_folder import RunFolder
from train_core.tracking.delivery.catch_up import catch_up
from train_core.tracking.delivery.mirror import Mirror

KIND = "mlflow.experimentKind"


def parent(uri: str) -> Run:
    return stages(uri)["pipeline"]


def note(uri: str) -> list[str]:
    return parent(uri).data.tags["mlflow.note.content"].splitlines()


def test_a_new_experiment_opens_in_the_view_for_machine_learning(
    run: RunBuilder, tracking_uri: str
) -> None:
    mirror_once(run, tracking_uri)
    experiment = MlflowClient(tracking_uri).get_experiment_by_name("tests")
    assert experiment is not None
    assert experiment.tags[KIND] == "custom_model_development"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, "custom_model_development"),
        ("no_inferred_type", "custom_model_development"),
        ("genai_development_inferred", "custom_model_development"),
        ("genai_development", "genai_development"),
        ("forecasting", "forecasting"),
    ],
)
def test_a_view_that_somebody_chose_stays(
    run: RunBuilder, tracking_uri: str, before: str | None, after: str
) -> None:
    client = MlflowClient(tracking_uri)
    experiment_id = client.create_experiment("tests")
    if before:
        client.set_experiment_tag(experiment_id, KIND, before)
    mirror_once(run, tracking_uri)
    assert client.get_experiment(experiment_id).tags[KIND] == after


@pytest.mark.promise("mlflow-view")
def test_the_description_says_in_five_lines_what_became_of_the_run(
    run: RunBuilder, tracking_uri: str
) -> None:
    run.change_record(flow_run="1234-5678")
    mirror = Mirror(run.folder, tracking_uri, "tests", job_url="http://ray/#/jobs/7")
    mirror.start()
    assert mirror.flush()
    begun = note(tracking_uri)
    assert len(begun) == 5
    assert begun[3].startswith("- **Running**: since 2026-09-21 ")
    assert begun[3].endswith("nothing is committed yet")
    best = run.commit(range(1, 20), finished=True)
    decided = run.champion(best)
    run.outcome(best, {"accuracy": 0.75}, gate=decided)
    assert mirror.close(EndStatus.FINISHED)
    gate, chosen, trained, ended, where = note(tracking_uri)
    data = "train (100 samples, `aaaaaaaaaaaa`), test (10 samples)"
    assert trained == f"- **Trained**: `Digits` on {data}; with settings.width 4"
    assert ended == "- **Ended**: FINISHED, step 19, epoch 1; all epochs are trained"
    metrics = "validation/accuracy 0.519, test/accuracy 0.75"
    assert chosen == f"- **Best**: `{best.name}` (step 19): {metrics}"
    assert gate == f"- **Gate**: {decided.summary}"
    job = "[Ray's job](http://ray/#/jobs/7)"
    assert where == f"- **Where**: run folder `{run.folder.url}`, flow run `1234-5678`, {job}"


def test_a_run_that_was_killed_says_so_and_nothing_of_a_best(
    run: RunBuilder, tracking_uri: str
) -> None:
    run.commit(range(1, 10))
    run.new_attempt()
    run.commit(range(10, 20))
    mirror_once(run, tracking_uri, EndStatus.KILLED)
    gate, best, _, ended, _ = note(tracking_uri)
    # The driver that has the run goes on to another attempt where a worker has died.
    assert ended == "- **Ended**: KILLED, step 19, epoch 1, in attempt 2 (attempt 1 lost a worker)"
    assert (best, gate) == ("- **Best**: not chosen yet", "- **Gate**: not asked")


def test_who_mirrors_the_run_later_does_not_forget_what_was_told(
    run: RunBuilder, tracking_uri: str
) -> None:
    best = run.commit(range(1, 20), finished=True)
    decided = run.champion(best)
    tested: dict[str, float | None] = {"accuracy": 0.9, "loss": 0.3}
    run.outcome(best, tested, gate=decided, flow_run="[night](http://p/1)")
    mirrored(run.folder, tracking_uri, job_url="http://ray/#/jobs/7")
    before = note(tracking_uri)
    assert before[0] == f"- **Gate**: {decided.summary}"
    assert "[night](http://p/1)" in before[4]
    run.lease.release()
    catch_up_again(run.folder, tracking_uri)
    assert note(tracking_uri) == before


def catch_up_again(folder: RunFolder, uri: str) -> None:
    """`catch_up` of a run whose checkpoints have no weights, so that no model can be shown."""
    with pytest.raises(Exception, match="has not all of run"):
        catch_up(folder, uri)


@pytest.mark.promise("mlflow-view")
def test_parameters_that_were_set_are_apart_and_all_are_found_by_their_names(
    tmp_path: Path, tracking_uri: str
) -> None:
    folder = RunFolder(str(tmp_path / "runs"), "digits-1")
    settings = {"width": 4, "dropout": 0.1}  # 0.1 is the default
    config = TrainConfig(
        settings=settings, monitor="validation/accuracy", epochs=7, num_workers=2, num_shards=2
    )
    run = RunBuilder(folder, config)
    mirror_once(run, tracking_uri)
    shown = parent(tracking_uri).data.params
    apart = {name: value for name, value in shown.items() if name.startswith("set.")}
    assert apart == {"set.settings.width": "4", "set.epochs": "7", "set.num_workers": "2"}
    names = {"settings.width": "4", "settings.dropout": "0.1", "epochs": "7", "batch_size": "128"}
    assert shown.items() >= names.items()
    client = MlflowClient(tracking_uri)
    for asked in ("params.epochs = '7'", "params.`set.epochs` = '7'", "params.batch_size = '128'"):
        assert len(client.search_runs(["1"], asked)) == 1, asked
    assert client.search_runs(["1"], "params.`set.batch_size` LIKE '%'") == []


@pytest.mark.promise("mlflow-compare")
def test_two_retrainings_that_differ_in_their_data_alone_differ_in_that_parameter(
    tmp_path: Path, tracking_uri: str
) -> None:
    found = []
    for samples, digest in ((2500, "a" * 64), (11500, None)):
        run = RunBuilder(RunFolder(str(tmp_path / "runs"), f"of-{samples}"))
        train = {"samples": samples, "digest": digest}
        run.change_record(datasets={"train": train, "test": {"samples": 10, "digest": "b" * 64}})
        mirror_once(run, tracking_uri)
        client = MlflowClient(tracking_uri)
        (shown,) = client.search_runs(["1"], f"attributes.run_name = 'of-{samples}'")
        found.append(shown.data.params)
    first, second = found
    assert first.items() - second.items() == {("data.train", f"2500 samples, {'a' * 12}")}
    assert second.items() - first.items() == {("data.train", "11500 samples")}
    assert first["data.test"] == f"10 samples, {'b' * 12}"


def test_the_commit_of_the_workload_is_the_source_version(
    run: RunBuilder, tracking_uri: str
) -> None:
    run.change_record(code={"evertrain": "1.0", "commit": "c" * 40})
    mirror_once(run, tracking_uri)
    tags = parent(tracking_uri).data.tags
    assert tags["mlflow.source.git.commit"] == "c" * 40
    assert tags["mlflow.source.name"] == "train_core.workloads.digits:Digits"
    assert tags["mlflow.source.type"] == "LOCAL"


def blocked(uri: str) -> list[tuple[int, float]]:
    client = MlflowClient(uri)
    history = client.get_metric_history(parent(uri).info.run_id, "checkpoint/blocked_s")
    return sorted((point.step, point.value) for point in history)


def commit_with_stalls(run: RunBuilder, steps: range, stalls: dict[int, float]) -> None:
    entries = [
        entry(step).model_copy(
            update={"rates": {"checkpoint/blocked_s": stalls[step]} if step in stalls else {}}
        )
        for step in steps
    ]
    run.commit(steps, entries=entries)


@pytest.mark.promise("mlflow-counters")
def test_a_counter_grows_from_zero_over_all_attempts(run: RunBuilder, tracking_uri: str) -> None:
    commit_with_stalls(run, range(1, 10), {5: 0.5})
    mirror_once(run, tracking_uri, EndStatus.KILLED)
    assert blocked(tracking_uri) == [(1, 0), (5, 0.5)]
    run.new_attempt()
    commit_with_stalls(run, range(10, 20), {12: 0.25, 19: 1})
    for _ in range(2):
        mirror_once(run, tracking_uri)
        assert blocked(tracking_uri) == [(1, 0), (5, 0.5), (12, 0.75), (19, 1.75)]
    # Whoever lost the position sends the same points.
    MlflowClient(tracking_uri).set_tag(
        parent(tracking_uri).info.run_id, "evertrain.mirrored", "8+1"
    )
    mirror_once(run, tracking_uri)
    assert blocked(tracking_uri) == [(1, 0), (5, 0.5), (12, 0.75), (19, 1.75)]


def test_a_counter_that_grows_while_the_run_is_followed_has_the_same_points(
    run: RunBuilder, tracking_uri: str
) -> None:
    mirror = Mirror(run.folder, tracking_uri, "tests")
    mirror.start()
    try:
        commit_with_stalls(run, range(1, 10), {5: 0.5})
        assert mirror.flush()
        commit_with_stalls(run, range(10, 20), {12: 0.25})
        assert mirror.flush()
    finally:
        mirror.close(EndStatus.KILLED)
    assert blocked(tracking_uri) == [(1, 0), (5, 0.5), (12, 0.75)]


def test_a_counter_has_one_point_a_step_also_where_a_validation_counts_too(
    run: RunBuilder, tracking_uri: str
) -> None:
    stall = {"checkpoint/blocked_s": 1.0}
    validation = entry(2).model_copy(update={"metrics": {"validation/loss": 0.5}, "rates": stall})
    both = [entry(1), entry(2).model_copy(update={"rates": stall}), validation]
    run.commit(range(1, 3), entries=both)
    mirror_once(run, tracking_uri, EndStatus.KILLED)
    run.commit(range(3, 5))
    mirror_once(run, tracking_uri)
    assert blocked(tracking_uri) == [(1, 0), (2, 1), (3, 2)]
    assert set(points(tracking_uri).values()) == {1}
