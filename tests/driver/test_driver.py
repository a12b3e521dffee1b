"""The driver process with a real Ray: new data of every kind, and errors as what they are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from sklearn.datasets import load_digits

from tests.asked import evaluate, infer, train
from tests.plugins.leaks import Belongings
from tests.rank.alone import run
from tests.rank.digests import digest_of_training
from tests.waiting import wait_for
from tests.workloads.idx_files import format_idx
from train_core import TrainConfig, fit
from train_core.client.driver_handle import Driver
from train_core.config import available_cpus
from train_core.errors import (
    ConfigError,
    DataError,
    GaveUpError,
    NotFiniteError,
    ResourceError,
    StageError,
    UserCodeError,
)
from train_core.requests import DriverRequest, ScoringRequest
from train_core.results import CheckpointSummary
from train_core.storage.coordination.pins import valid_pins
from train_core.storage.objects.digest_algorithm import digest_of
from train_core.storage.objects.store import Store
from train_core.storage.records.manifest import PredictionsManifest, read_manifest
from train_core.storage.run_folder import RunFolder
from train_core.text.log_lines import warning_in

# Ray starts workers while a test runs; what is left is looked at when the driver ended.
pytestmark = [pytest.mark.timeout(240), pytest.mark.leaves]

IMAGES = load_digits().images[:50].astype(np.uint8)


class Trained:
    """A driver whose training is done."""

    def __init__(self, driver: Driver, best: CheckpointSummary) -> None:
        self.driver, self.best = driver, best

    def rows(self, source: str) -> list[dict[str, object]]:
        result = infer(self.driver, self.best, source)
        table = pq.read_table(result.files)
        assert table.num_rows == result.num_rows
        rows: list[dict[str, object]] = table.sort_by("id").to_pylist()
        return rows


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    request = DriverRequest(
        storage=str(tmp_path_factory.mktemp("runs")),
        run="digits",
        config=TrainConfig(batch_size=64, eval_batch_size=16, num_shards=2, epochs=2),
    )
    before = Belongings.now()
    with Driver.start(request) as driver:
        assert not driver.prepared().resumed
        result = train(driver)
        assert (result.epoch, result.stopped_by) == (2, "epochs")
        yield Trained(driver, result.checkpoints[-1])
    assert not before.added(within_s=0)


def scoring(trained: Trained, source: str) -> ScoringRequest:
    """A batch inference with the trained run."""
    request = trained.driver.request
    return ScoringRequest(
        storage=request.storage, run=request.run, config=request.config, infer_input=source
    )


@pytest.mark.promise("plain-files")
def test_new_data_of_every_kind_gets_the_same_predictions(trained: Trained, tmp_path: Path) -> None:
    (tmp_path / "parquet").mkdir()
    for part, images in enumerate(np.array_split(IMAGES, 3)):
        names = [f"{part}-{row:03d}" for row in range(len(images))]
        table = pa.table({"id": names, "image": images.tolist()})
        pq.write_table(table, tmp_path / f"parquet/{part}.parquet", row_group_size=7)
    (tmp_path / "images").mkdir()
    for row, image in enumerate(IMAGES):
        Image.fromarray(image).save(tmp_path / f"images/{row:03d}.png")
    Store(str(tmp_path / "idx")).write("new-images-idx3-ubyte", format_idx(IMAGES))

    kinds = {kind: trained.rows(str(tmp_path / kind)) for kind in ("parquet", "images", "idx")}

    assert [row["id"] for row in kinds["images"]] == [f"{row:03d}.png" for row in range(50)]
    by_kind = [sorted(row["prediction"] for row in rows) for rows in kinds.values()]
    assert by_kind[0] == by_kind[1] == by_kind[2]
    assert kinds["parquet"][0]["model_step"] == trained.best.step
    probabilities = [row["probabilities"] for row in kinds["images"]]
    assert probabilities == [row["probabilities"] for row in kinds["parquet"]]


def test_data_that_a_worker_refuses_is_an_error_of_one_line(
    trained: Trained, tmp_path: Path
) -> None:
    # The first one is tried before there are workers; a batch holds 16.
    for row in range(16):
        Image.fromarray(IMAGES[row]).save(tmp_path / f"{row:02d}.png")
    Image.fromarray(np.zeros((28, 28), np.uint8)).save(tmp_path / "large.png")
    with pytest.raises(DataError, match=r"large\.png: column 'image' has shape") as raised:
        infer(trained.driver, trained.best, str(tmp_path))
    assert "\n" not in str(raised.value)


@pytest.mark.promise("input-refused")
def test_rows_of_another_shape_are_told_by_file(trained: Trained, tmp_path: Path) -> None:
    for row, size in enumerate((8, 28)):
        Image.fromarray(np.zeros((size, size), np.uint8)).save(tmp_path / f"{row}.png")
    with pytest.raises(DataError, match=r"1\.png: column 'image' has shape \(1, 28, 28\)"):
        infer(trained.driver, trained.best, str(tmp_path))


@pytest.mark.slow
@pytest.mark.promise("input-refused")
def test_data_without_a_column_is_refused_before_anything_is_started(
    trained: Trained, tmp_path: Path
) -> None:
    pq.write_table(pa.table({"picture": IMAGES.tolist()}), tmp_path / "new.parquet")
    with (
        Driver.start(scoring(trained, str(tmp_path))) as driver,
        pytest.raises(DataError, match=r"new\.parquet.*'image'.* picture$"),
    ):
        driver.prepared()


@pytest.mark.promise("predictions-input")
def test_predictions_say_what_they_were_made_of(trained: Trained, tmp_path: Path) -> None:
    Image.fromarray(IMAGES[0]).save(tmp_path / "a.png")
    result = infer(trained.driver, trained.best, str(tmp_path))
    manifest, _ = read_manifest(Store(result.uri), PredictionsManifest, "_manifest.json")
    (file,) = manifest.input["files"]
    assert (file["name"], file["digest"]) == ("a.png", digest_of((tmp_path / "a.png").read_bytes()))
    assert (result.source, result.input_digest) == (str(tmp_path), manifest.input["digest"])
    of_split = infer(trained.driver, trained.best, "validation")
    request = trained.driver.request
    recorded = RunFolder(request.storage, request.run).record().datasets["validation"]
    assert (of_split.source, of_split.input_digest) == ("validation", recorded["digest"])


@pytest.mark.promise("batch-beside-training")
def test_predictions_are_made_once_unless_a_file_of_them_is_gone(trained: Trained) -> None:
    first = infer(trained.driver, trained.best, "validation")
    assert infer(trained.driver, trained.best, "validation") == first
    Path(first.files[0].removeprefix("file://")).unlink()
    assert infer(trained.driver, trained.best, "validation").uri != first.uri


@pytest.mark.promise("same-prepare")
def test_evaluation_measures_what_the_training_measured(trained: Trained) -> None:
    (found,) = evaluate(trained.driver, [trained.best], "validation")
    validated = {
        name.removeprefix("validation/"): value
        for name, value in trained.best.metrics.items()
        if name.startswith("validation/")
    }
    assert found.metrics == validated
    assert found.num_samples == 180
    assert evaluate(trained.driver, [trained.best], "validation") == [found]


@pytest.mark.slow
@pytest.mark.promise("batch-beside-training")
def test_scoring_needs_nobody_to_have_the_run(trained: Trained) -> None:
    with Driver.start(scoring(trained, "test")) as driver:
        assert driver.prepared().num_samples == {"infer": 360}
        assert pins_during(
            trained,
            lambda: infer(driver, trained.best, "test"),
        ) == {("infer", 0)}
        assert infer(driver, trained.best, "test").num_rows == 360
        with pytest.raises(ConfigError, match="the request has no stage 'train'"):
            train(driver)


def pins_during(trained: Trained, call: Callable[[], object]) -> set[tuple[str, int]]:
    """What was being done with the best checkpoint while `call` ran, and by which attempt."""
    request = trained.driver.request
    store = RunFolder(request.storage, request.run).store
    seen: set[tuple[str, int]] = set()
    with ThreadPoolExecutor(1) as thread:
        running = thread.submit(call)
        while not running.done():
            seen |= {
                (found.pin.why, found.pin.attempt)
                for found in valid_pins(store)
                if found.pin and found.checkpoint == trained.best.name
            }
        running.result()
    assert valid_pins(store) == []
    return seen


def test_what_is_evaluated_is_pinned_meanwhile(trained: Trained) -> None:
    def measure() -> object:
        return evaluate(trained.driver, [trained.best], "test")

    assert pins_during(trained, measure) == {("evaluate", 1)}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("warning: rank 1 died: it was killed", "rank 1 died: it was killed"),
        ("(rank 0 pid=28156) warning: not saved", "not saved"),
        ("(rank 0 pid=28156, ip=10.0.0.2) warning: not saved", "not saved"),
        ("(rank 0 pid=28156) epoch 1, step 20: loss 1", None),
        ("a warning: of somebody's own", None),
        ("", None),
    ],
)
def test_warnings_are_told_from_other_lines(line: str, expected: str | None) -> None:
    assert warning_in(line) == expected


@pytest.mark.slow
def test_users_bug_comes_with_the_traceback_of_its_rank(tmp_path: Path) -> None:
    config = TrainConfig(
        workload="tests.rank.tiny:Buggy", batch_size=32, num_workers=2, cpus_per_worker=0.5
    )
    with pytest.raises(UserCodeError, match="rank 1: KeyError: 'connection to gloo'") as raised:
        fit(config, storage=str(tmp_path), run="buggy", on_log=None)
    assert "in loss" in raised.value.traceback


@pytest.mark.promise("fit")
@pytest.mark.slow
@pytest.mark.parametrize(
    ("workload", "told"),
    [
        ("Mortal", ["warning: begins again: rank 1 died: "]),
        ("Hanging", ["Timeout (0:00:05", "in hang_for_good", "begins again"]),
    ],
)
def test_a_worker_that_dies_or_hangs_leaves_no_trace_in_the_numbers(
    workload: str, told: list[str], tmp_path: Path
) -> None:
    asked = {
        "batch_size": 32,
        "num_shards": 2,
        "epochs": 3,
        "checkpoint_every_steps": 2,
        "checkpoint_backpressure": "wait",
    }
    undisturbed = RunFolder(str(tmp_path), "undisturbed")
    run(undisturbed, **asked | {"eval_batch_size": TrainConfig().eval_batch_size})
    config = TrainConfig(
        workload=f"tests.rank.tiny:{workload}",
        settings={"scratch": str(tmp_path)},
        num_workers=2,
        cpus_per_worker=0.5,
        hang_timeout_s=5,
        **asked,
    )
    log: list[str] = []
    result = fit(config, storage=str(tmp_path), run="run", on_log=log.append)
    assert result.attempt == 2
    assert digest_of_training(RunFolder(str(tmp_path), "run")) == digest_of_training(undisturbed)
    for words in told:
        assert any(words in line for line in log), "\n".join(log)


@pytest.mark.promise("scorer-hangs")
@pytest.mark.slow
def test_who_evaluates_and_hangs_is_ended_and_the_next_try_is_good(tmp_path: Path) -> None:
    config = TrainConfig(
        workload="tests.rank.tiny:HangingScorer",
        settings={"scratch": str(tmp_path)},
        batch_size=32,
        hang_timeout_s=5,
    )
    log: list[str] = []
    request = DriverRequest(storage=str(tmp_path), run="run", config=config)
    with Driver.start(request, log.append) as driver:
        finalists = train(driver).finalists
        with pytest.raises(StageError):
            evaluate(driver, finalists, "validation")
        # Ray tells what its workers wrote a moment later.
        for words in ("Timeout (0:00:05", "in hang_for_good"):
            wait_for(lambda words=words: any(words in one for one in log), 20, lambda: str(log))
        (evaluation,) = evaluate(driver, finalists, "validation")
        assert evaluation.metrics


@pytest.mark.slow
def test_loss_that_is_no_number_ends_the_training_and_keeps_what_was_good(tmp_path: Path) -> None:
    config = TrainConfig(
        workload="tests.rank.tiny:Tiny",
        settings={"nan_from_step": 3},
        batch_size=32,
        checkpoint_every_steps=1,
        checkpoint_backpressure="wait",
    )
    with pytest.raises(NotFiniteError, match="step-00000003-a0001"):
        fit(config, storage=str(tmp_path), run="nan", on_log=None)
    assert max(c.manifest.step for c in RunFolder(str(tmp_path), "nan").checkpoints()) == 3


@pytest.mark.slow
def test_a_driver_that_is_killed_leaves_nothing_once_it_is_closed(tmp_path: Path) -> None:
    config = TrainConfig(workload="tests.rank.tiny:Tiny", batch_size=32)
    request = DriverRequest(storage=str(tmp_path), run="run", config=config)
    with Driver.start(request) as driver:
        train(driver)
        process = psutil.Process(driver.carrier.process.pid)
        started = process.children(recursive=True)
        assert any("raylet" in one.name() for one in started)
        temporary = Path(driver.carrier.temporary)
        (temporary / "half-a-model").touch()
        process.kill()
        # Ray's processes still have the pipe that it read its commands from.
        driver.carrier.threads[0].join()
        with pytest.raises(StageError, match="ended unexpectedly"):
            evaluate(driver, [], "validation")
    _, alive = psutil.wait_procs(started, timeout=10)
    assert not alive
    assert not temporary.exists()


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray's memory monitor strikes when 3 GB more are used than now."""
    memory = psutil.virtual_memory()
    used = memory.total - memory.available
    monkeypatch.setenv("RAY_memory_usage_threshold", f"{(used + 3e9) / memory.total:.3f}")
    monkeypatch.setenv("RAY_memory_monitor_refresh_ms", "100")


@pytest.mark.promise("memory")
@pytest.mark.slow
@pytest.mark.usefixtures("little_memory")
def test_a_rank_that_takes_too_much_memory_is_not_tried_again(tmp_path: Path) -> None:
    config = TrainConfig(
        workload="tests.rank.tiny:Hungry", batch_size=32, num_workers=2, cpus_per_worker=0.5
    )
    # Which of the ranks, Ray decides.
    with pytest.raises(ResourceError, match=r"was ended by Ray's memory.*used / ") as raised:
        fit(config, storage=str(tmp_path), run="hungry", on_log=None)
    assert "\n" not in str(raised.value)


@pytest.mark.slow
@pytest.mark.usefixtures("little_memory")
def test_who_scores_and_takes_too_much_memory_is_not_tried_again(tmp_path: Path) -> None:
    config = TrainConfig(workload="tests.rank.tiny:HungryScorer", batch_size=32, num_shards=1)
    request = DriverRequest(storage=str(tmp_path), run="hungry", config=config)
    with Driver.start(request) as driver:
        best = train(driver).checkpoints[-1]
        with pytest.raises(
            ResourceError,
            match=r"evaluates or infers .* was ended by Ray's memory.*used / ",
        ):
            infer(driver, best, "test")


@pytest.mark.slow
def test_a_ray_that_did_not_start_is_started_for_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = TrainConfig(workload="tests.rank.tiny:Tiny", batch_size=32)
    request = DriverRequest(storage=str(tmp_path), run="run", config=config)
    # Ray's sockets need a short path.
    with TemporaryDirectory(prefix="r-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        in_the_way = Path(folder, "ray")
        in_the_way.touch()
        monkeypatch.setenv("RAY_TMPDIR", str(in_the_way))
        with Driver.start(request) as driver:
            with pytest.raises(StageError, match="prepare: "):
                train(driver)
            in_the_way.unlink()
            assert train(driver).step == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "what",
    [
        pytest.param({}, id="workload"),
        pytest.param({"train_fn": "tests.compat.functions.plain:metrics_only"}, id="function"),
    ],
)
def test_workers_that_never_begin_are_given_up(tmp_path: Path, what: dict[str, str]) -> None:
    # No process group comes about, and the workers have all CPUs that there are.
    config = TrainConfig(
        num_workers=2,
        cpus_per_worker=available_cpus() / 2,
        runtime_env={"env_vars": {"GLOO_SOCKET_IFNAME": "nowhere"}},
        **what,
    )
    request = DriverRequest(storage=str(tmp_path), run="run", config=config)
    log: list[str] = []
    with (
        Driver.start(request, log.append) as driver,
        pytest.raises(GaveUpError, match=r"gave up after 4 tries.*nowhere"),
    ):
        train(driver)
    tries = [line for line in log if "begins again" in line]
    assert len(tries) == 3
    # None of them waited for CPUs that the one before had not given back.
    assert all("Unable to find address for: nowhere" in line for line in tries), "\n".join(tries)
