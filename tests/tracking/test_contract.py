"""What every tracker shows of a run, however often and by whoever the run is followed.

Both trackers pass it: MLflow, and the tests' folder of JSON lines.
"""

from __future__ import annotations

import json
import re
import shutil
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mlflow import MlflowClient

from tests.marks import slow
from tests.tracking.following import following, tracker_of
from tests.tracking.json_lines_tracker import JsonLinesTracker
from tests.tracking.run_builder import RunBuilder
from train_core.errors import TrackingError
from train_core.policy.end_status import EndStatus
from train_core.storage.objects.store import Store
from train_core.storage.run_folder import RunFolder
from train_core.timing import TrackingTiming
from train_core.tracking import pictures
from train_core.tracking.delivery.catch_up import catch_up
from train_core.tracking.delivery.mirror import Mirror
from train_core.tracking.follow import NOT_SHOWN
from train_core.tracking.mlflow.mlflow_tracker import MlflowTracker
from train_core.tracking.tracker import Stage, Status, Tracker

VERBS = ("open", "parameters", "metrics", "artifact", "model", "retain_models", "version", "tags")
CHILD = re.compile(r"evertrain\.(evaluate|infer)_run(\.\d+)?$")
"""The id of a nested run; of one that was made anew, as no parameter can change, a further one."""
HOW_IT_IS_FOLLOWED = pytest.mark.parametrize("kind", [slow("mlflow"), "json_lines"], indirect=True)
"""Tests of what is above any tracker: `make test` runs them with the cheap one."""
OFTEN = TrackingTiming(poll_s=0.05, max_backoff_s=0.2)


@dataclass(frozen=True)
class Kind:
    """A kind of tracker, new places for it, and what a place shows."""

    tracker: type[Tracker]
    new: Callable[[], str]
    content: Callable[[str], Any]
    delete: Callable[[str, Stage], None]
    """Deletes what a place has of a stage, as a person may."""


@pytest.fixture(autouse=True)
def drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each figure of a run is drawn once a test, however often the run is followed."""

    def kept(name: str) -> None:
        draw, drawn = getattr(pictures, name), dict[str, list[tuple[str, bytes]]]()

        def figures(*given: Any) -> list[tuple[str, bytes]]:
            # A test has one run.
            key = repr([one for one in given if not isinstance(one, RunFolder | Store)])
            if key not in drawn:
                drawn[key] = list(draw(*given))
            return drawn[key]

        monkeypatch.setattr(pictures, name, figures)

    # What is drawn is in the tests of pictures; here it takes a fourth of the time.
    for name in ("training_figures", "confusion_picture", "score_pictures"):
        kept(name)


@pytest.fixture(params=["mlflow", slow("json_lines")])
def kind(request: pytest.FixtureRequest, tmp_path: Path, empty_database: Path) -> Kind:
    places = iter(range(1000))

    def folder() -> str:
        path = tmp_path / f"place-{next(places)}"
        path.mkdir()
        return str(path)

    def database() -> str:
        path = Path(folder(), "mlflow.db")
        path.write_bytes(empty_database.read_bytes())
        return f"sqlite:///{path}"

    if request.param == "mlflow":
        return Kind(MlflowTracker, database, content_of_mlflow, delete_in_mlflow)
    return Kind(JsonLinesTracker, folder, content_of_folder, delete_in_folder)


def delete_in_mlflow(uri: str, stage: Stage) -> None:
    client = MlflowClient(uri)
    (found,) = client.search_runs(["1"], f"tags.`evertrain.stage` = '{stage}'")
    client.delete_run(found.info.run_id)


def delete_in_folder(uri: str, stage: Stage) -> None:
    (found,) = Path(uri).rglob(stage)
    shutil.rmtree(found)


def content_of_folder(uri: str) -> dict[str, Any]:
    """All files; points of the machine's load are no part of the run."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in Path(uri).rglob("*") if path.is_file()):
        key = str(path.relative_to(uri))
        if path.suffix == ".jsonl":
            lines = (json.loads(line) for line in path.read_text().splitlines())
            ones = [one for one in lines if not str(one.get("name", "")).startswith("system/")]
            found[key] = sorted(ones, key=json.dumps)
        else:
            found[key] = path.read_bytes()
    return found


def content_of_mlflow(uri: str) -> dict[str, Any]:
    """The runs of all stages, the models and the versions, without MLflow's own ids."""
    client, found = MlflowClient(uri), dict[str, Any]()
    for run in client.search_runs(["1"]):
        run_id, stage = run.info.run_id, run.data.tags["evertrain.stage"]
        assert stage not in found, "one run a stage"
        points = sorted(
            (key, one.step, one.timestamp, repr(one.value))
            for key in run.data.metrics
            if not key.startswith("system/")
            for one in client.get_metric_history(run_id, key)
        )
        assert len({point[:2] for point in points}) == len(points), "each (metric, step) once"
        found[stage] = {
            "status": run.info.status,
            "points": points,
            "params": {k: v for k, v in run.data.params.items() if not CHILD.match(k)},
            "tags": {k: v for k, v in run.data.tags.items() if k != "mlflow.parentRunId"},
            "inputs": sorted(one.dataset.name for one in run.inputs.dataset_inputs),
            "files": files_of(client, run_id),
        }
    for model in client.search_logged_models(["1"]):
        metrics = sorted((one.key, one.value) for one in model.metrics or [])
        found[model.name] = (model.tags, model.params, metrics)
    for version in client.search_model_versions():
        found[f"version {version.version}"] = (version.tags, version.description, version.aliases)
    return found


def files_of(client: MlflowClient, run_id: str, folder: str | None = None) -> list[tuple[str, int]]:
    found = []
    for one in client.list_artifacts(run_id, folder):
        found += files_of(client, run_id, one.path) if one.is_dir else [(one.path, one.file_size)]
    return sorted(found)


@pytest.fixture
def whole(run: RunBuilder) -> RunBuilder:
    """A finished pipeline: two checkpoints, evaluations, predictions, a decision and a report."""
    begin(run)
    grow(run)
    return run


def begin(run: RunBuilder) -> None:
    run.change_record(pipeline={"experiment": "tests", "mirror_weights": "none"})
    run.commit(range(1, 10))


def grow(run: RunBuilder) -> None:
    best = run.commit(range(10, 20), finished=True)
    tested = run.evaluate(best, "test")
    run.predict(best, source="s3://new", digest="d" * 64)
    parts = {"evaluations": [run.evaluate(best, "validation"), tested]}
    run.outcome(best, tested.metrics, gate=run.champion(best), **parts)


def follow(run: RunBuilder, uri: str, tracker: type[Tracker]) -> None:
    """All of the run, to its end."""
    follower = following(run.folder, tracker_of(run.folder, uri, tracker))
    follower.follow_commits()
    follower.follow_results()
    follower.end(EndStatus.FINISHED)


def faulty(tracker: type[Tracker], before: Callable[[str], None]) -> type[Tracker]:
    """The tracker that calls `before` with the name of each verb, first."""

    def verb(name: str) -> Callable[..., Any]:
        def call(self: Tracker, *args: Any, **named: Any) -> Any:
            before(name)
            return getattr(tracker, name)(self, *args, **named)

        return call

    return type("Faulty", (tracker,), {name: verb(name) for name in (*VERBS, "close")})


class KilledError(BaseException):
    """The process died."""


class Kill:
    """Dies before the verb of that number."""

    def __init__(self, at: int = 10**6) -> None:
        self.at, self.count = at, 0

    def __call__(self, verb: str) -> None:
        self.count += 1
        if self.count > self.at:
            raise KilledError(verb)


@pytest.mark.promise("mirror")
@pytest.mark.parametrize("every", [17, slow(1)])
def test_who_dies_between_two_verbs_leaves_what_the_next_one_completes(
    whole: RunBuilder, kind: Kind, every: int
) -> None:
    place, counting = kind.new(), Kill()
    follow(whole, place, faulty(kind.tracker, counting))
    expected = kind.content(place)
    assert counting.count > 30
    for at in range(0, counting.count, every):
        uri = kind.new()
        with suppress(KilledError):
            follow(whole, uri, faulty(kind.tracker, Kill(at)))
        follow(whole, uri, kind.tracker)
        assert kind.content(uri) == expected, f"died before verb {at}"


@pytest.mark.promise("mirror", "mlflow-registered")
def test_a_run_that_is_followed_live_looks_like_one_that_is_followed_afterwards(
    run: RunBuilder, kind: Kind
) -> None:
    begin(run)
    live, afterwards = kind.new(), kind.new()
    mirror = Mirror(run.folder, live, "tests", timing=OFTEN, load_tracker=lambda: kind.tracker)
    mirror.start()
    assert mirror.flush()
    with mirror.during("train"):
        grow(run)
    assert mirror.close(EndStatus.FINISHED)
    assert not mirror.not_shown
    run.lease.end = EndStatus.FINISHED
    run.lease.release()
    for _ in range(2):
        catch_up(run.folder, afterwards, load_tracker=lambda: kind.tracker)
        assert kind.content(afterwards) == kind.content(live)
    # What the live one has is not changed by who follows the run once more.
    before = kind.content(live)
    catch_up(run.folder, live, load_tracker=lambda: kind.tracker)
    assert kind.content(live) == before


@HOW_IT_IS_FOLLOWED
def test_two_followers_by_turns_show_what_one_shows(whole: RunBuilder, kind: Kind) -> None:
    expected, uri = kind.new(), kind.new()
    follow(whole, expected, kind.tracker)
    both = [following(whole.folder, tracker_of(whole.folder, uri, kind.tracker)) for _ in range(2)]
    for follower in both:
        follower.follow_commits()
    for follower in both:
        follower.follow_results()
    for follower in both:
        follower.end(EndStatus.FINISHED)
    assert kind.content(uri) == kind.content(expected)


def mirrored(run: RunBuilder, uri: str, tracker: type[Tracker]) -> Mirror:
    mirror = Mirror(run.folder, uri, "tests", timing=OFTEN, load_tracker=lambda: tracker)
    mirror.start()
    assert mirror.flush(60)
    assert mirror.close(EndStatus.FINISHED, timeout_s=60)
    return mirror


def test_what_a_tracker_misses_while_it_is_down_is_shown_once_it_is_up(
    whole: RunBuilder, kind: Kind
) -> None:
    expected, uri, failed = kind.new(), kind.new(), []

    def down(verb: str) -> None:
        # Each third time at another verb, so that each attempt comes a little further.
        failed.append(verb)
        if len(failed) in (2, 5, 9, 14, 20, 27, 35):
            raise ConnectionError("it is down")

    follow(whole, expected, kind.tracker)
    mirror = mirrored(whole, uri, faulty(kind.tracker, down))
    assert len(failed) > 35
    assert not mirror.not_shown
    assert kind.content(uri) == kind.content(expected)


@pytest.mark.promise("mirror")
@pytest.mark.parametrize("stage", ["pipeline", slow("evaluate"), slow("infer")])
def test_what_somebody_deletes_while_a_tracker_is_down_is_there_again_afterwards(
    whole: RunBuilder, kind: Kind, stage: Stage
) -> None:
    expected, uri, is_down = kind.new(), kind.new(), threading.Event()

    def down_once(verb: str) -> None:
        if is_down.is_set():
            is_down.clear()
            raise ConnectionError("it is down")

    follow(whole, expected, kind.tracker)
    tracker = faulty(kind.tracker, down_once)
    mirror = Mirror(whole.folder, uri, "tests", timing=OFTEN, load_tracker=lambda: tracker)
    mirror.start()
    assert mirror.flush(60)
    kind.delete(uri, stage)
    is_down.set()
    assert mirror.flush(60)
    assert not is_down.is_set()
    assert mirror.close(EndStatus.FINISHED, timeout_s=60)
    assert kind.content(uri) == kind.content(expected)


@HOW_IT_IS_FOLLOWED
def test_a_stage_that_failed_is_ended_although_the_tracker_is_down_just_then(
    run: RunBuilder, kind: Kind
) -> None:
    begin(run)
    uri, failed = kind.new(), []

    def down_at_close(self: Tracker, stage: Stage, status: Status) -> None:
        if stage == "evaluate" and not failed:
            failed.append(stage)
            raise ConnectionError("it is down")
        kind.tracker.close(self, stage, status)

    tracker: type[Tracker] = type("DownAtClose", (kind.tracker,), {"close": down_at_close})
    mirror = Mirror(run.folder, uri, "tests", timing=OFTEN, load_tracker=lambda: tracker)
    mirror.start()
    with suppress(ZeroDivisionError), mirror.during("evaluate"):
        assert mirror.flush(60)
        raise ZeroDivisionError
    assert mirror.close(EndStatus.FAILED, timeout_s=60)
    assert failed
    assert tracker_of(run.folder, uri, kind.tracker).open("evaluate").status == "FAILED"


@HOW_IT_IS_FOLLOWED
def test_a_stage_that_failed_stays_so_for_who_follows_the_run_afterwards(
    run: RunBuilder, kind: Kind
) -> None:
    run.evaluate(run.commit(range(1, 10)), "validation")
    uri = kind.new()
    tracker = tracker_of(run.folder, uri, kind.tracker)
    tracker.open("evaluate", is_running=True)
    tracker.close("evaluate", "FAILED")
    following(run.folder, tracker, is_live=False).follow_results()
    assert tracker_of(run.folder, uri, kind.tracker).open("evaluate").status == "FAILED"


@HOW_IT_IS_FOLLOWED
def test_who_follows_the_run_of_a_job_afterwards_leaves_where_it_ran(
    whole: RunBuilder, kind: Kind
) -> None:
    uri, job_url = kind.new(), "http://head:8265/#/jobs/run-a0001"
    mirror = Mirror(
        whole.folder,
        uri,
        "tests",
        timing=OFTEN,
        job_url=job_url,
        load_tracker=lambda: kind.tracker,
    )
    mirror.start()
    assert mirror.close(EndStatus.FINISHED, timeout_s=60)
    live = kind.content(uri)
    assert "run-a0001" in str(live)
    whole.lease.end = EndStatus.FINISHED
    whole.lease.release()
    catch_up(whole.folder, uri, load_tracker=lambda: kind.tracker)
    assert kind.content(uri) == live


@HOW_IT_IS_FOLLOWED
def test_a_tracker_that_hangs_keeps_nobody_waiting(run: RunBuilder, kind: Kind) -> None:
    begin(run)
    answers = threading.Event()

    def slow(_: str) -> None:
        assert answers.wait(60)

    uri = kind.new()
    tracker = faulty(kind.tracker, slow)
    mirror = Mirror(run.folder, uri, "tests", timing=OFTEN, load_tracker=lambda: tracker)
    mirror.start()
    try:
        with mirror.during("train"):
            grow(run)
        assert not mirror.flush(timeout_s=0.2)
    finally:
        answers.set()
    assert mirror.close(EndStatus.FINISHED, timeout_s=60)
    expected = kind.new()
    follow(run, expected, kind.tracker)
    assert kind.content(uri) == kind.content(expected)


@HOW_IT_IS_FOLLOWED
def test_what_a_tracker_refuses_is_told_and_hides_no_other_result(
    whole: RunBuilder, kind: Kind
) -> None:
    def refuse(verb: str) -> None:
        if verb == "version":
            raise TrackingError("versions are not for you")

    uri = kind.new()
    mirror = mirrored(whole, uri, faulty(kind.tracker, refuse))
    (told,) = mirror.not_shown
    assert "the decision on models:/Digits/1: TrackingError: versions are not for you" in told
    known = tracker_of(whole.folder, uri, kind.tracker).open("pipeline").tags
    assert known[NOT_SHOWN] == told
    whole.lease.release()
    # Who mirrors the run later, and may do it, takes that back.
    catch_up(whole.folder, uri, load_tracker=lambda: kind.tracker)
    assert NOT_SHOWN not in tracker_of(whole.folder, uri, kind.tracker).open("pipeline").tags
    expected = kind.new()
    catch_up(whole.folder, expected, load_tracker=lambda: kind.tracker)
    assert kind.content(uri) == kind.content(expected)
