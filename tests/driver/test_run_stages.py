"""The stages of the driver, in this process: who was replaced, who begins, who begins again."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.rank.alone import run
from tests.storage.doubles.faulty_store import FaultyStore
from train_core.cluster.pool import WorkerPool
from train_core.config import TrainConfig
from train_core.driver.held_run import HeldRun
from train_core.driver.ray_session import ClusterRaySession
from train_core.driver.run_stages import RunStages
from train_core.driver.scoring_stages import ScoringStages
from train_core.errors import FencedError, StorageError
from train_core.policy.end_status import EndStatus
from train_core.requests import DriverRequest, ScoringRequest
from train_core.results import TrainResult
from train_core.stages import EVALUATE, INFER, PUBLISH
from train_core.storage.coordination import lease
from train_core.storage.objects.store import Store
from train_core.storage.records.manifest import EvaluationManifest, PredictionsManifest
from train_core.storage.records.names import JOURNAL, MODEL_FILE
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import begin_attempt
from train_core.timing import ClusterTiming, CoordinationTiming, Timing


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder(str(tmp_path), "run")


def driver_of(folder: RunFolder, ray: ClusterRaySession) -> RunStages:
    """The stages of a driver that has the run."""
    request = DriverRequest(storage=folder.storage, run=folder.name, config=folder.record().config)
    driver = RunStages(request, ray)
    driver.held = HeldRun.take(folder)
    return driver


def test_a_replaced_driver_evaluates_infers_and_publishes_nothing(folder: RunFolder) -> None:
    run(folder)
    # Of a cluster that was joined, which nothing here asks for anything.
    driver = driver_of(folder, ClusterRaySession())
    folder.store.create("lease/0002.json", folder.store.read("lease/0001.json"))
    before = folder.store.names()
    best = folder.summary(folder.checkpoints()[-1])
    trained = TrainResult(
        run=folder.name,
        attempt=1,
        step=best.step,
        epoch=1,
        samples_seen=1,
        stopped_by="epochs",
        metrics={},
        samples_per_s=1,
        seconds=1,
        checkpoints=[best],
    )
    outcome = PUBLISH.arguments(
        train=trained, evaluations=[], best=best, predictions=None, seconds={}
    )
    for stage in (
        lambda: driver.evaluate(EVALUATE.arguments(checkpoints=[], split="test")),
        lambda: driver.infer(INFER.arguments(checkpoint=best, source="test")),
        lambda: driver.publish(outcome),
    ):
        with pytest.raises(FencedError):
            stage()
    assert folder.store.names() == before
    driver.close("FAILED")


class PoolHere(WorkerPool):
    """Does its workers' tasks in this process, and calls `then` before it gives the results."""

    def __init__(self, config: TrainConfig, then: Callable[[], None]) -> None:
        super().__init__(config)
        self._then = then

    def map(
        self,
        function: str,
        arguments: Sequence[Sequence[Any]],
        on_result: Callable[[int, Any], Any] = lambda _, result: result,
    ) -> list[Any]:
        module, _, name = function.partition(":")
        results = [getattr(import_module(module), name)(*given) for given in arguments]
        self._then()
        return [on_result(place, result) for place, result in enumerate(results)]


class RayHere(ClusterRaySession):
    """There is no cluster, and whoever scores gets this process."""

    def __init__(self, then: Callable[[], None]) -> None:
        super().__init__()
        self._then = then

    def join(self, config: TrainConfig, *, nodes_wait_s: float = 0) -> None:
        """Nothing to join."""

    def pool_for_scoring(self, config: TrainConfig) -> WorkerPool:
        return PoolHere(config, self._then)


@pytest.mark.parametrize("stage", ["evaluate", "infer"])
def test_a_driver_that_is_replaced_while_it_scores_commits_no_result(
    folder: RunFolder, stage: str
) -> None:
    run(folder)
    best = folder.summary(folder.checkpoints()[-1])

    def replace() -> None:
        folder.store.create("lease/0002.json", folder.store.read("lease/0001.json"))

    driver = driver_of(folder, RayHere(then=replace))
    score = {
        "evaluate": lambda: driver.evaluate(
            EVALUATE.arguments(checkpoints=[best], split="validation")
        ),
        "infer": lambda: driver.infer(INFER.arguments(checkpoint=best, source="validation")),
    }
    with pytest.raises(FencedError):
        score[stage]()
    assert not list(folder.results(f"evaluations/{best.name}", EvaluationManifest))
    assert not list(folder.results("predictions", PredictionsManifest))
    driver.close("FAILED")


@pytest.mark.promise("address-of-a-model")
def test_predictions_say_as_which_version_their_checkpoint_was_asked_for(folder: RunFolder) -> None:
    run(folder)
    asked: dict[str, Any] = {
        "storage": folder.storage,
        "run": folder.name,
        "config": folder.record().config,
        "infer_input": "validation",
    }
    best = folder.summary(folder.checkpoints()[-1])
    made = []
    # Once for a version, once more for the next, and not again for nobody's.
    for model in ("models:/Tiny/3", "models:/Tiny/3", "models:/Tiny/4", ""):
        scoring = ScoringStages(ScoringRequest(**asked, model=model), RayHere(lambda: None))
        scoring.prepare()
        made.append(scoring.infer(INFER.arguments(checkpoint=best, source="validation")).uri)
        scoring.close("FINISHED")
    found = {
        folder.store.uri(key): manifest.model
        for key, manifest in folder.results("predictions", PredictionsManifest)
    }
    assert sorted(found.values()) == ["models:/Tiny/3", "models:/Tiny/4"]
    assert [found[uri] for uri in made[:3]] == [
        "models:/Tiny/3",
        "models:/Tiny/3",
        "models:/Tiny/4",
    ]
    assert made[3] in made[:3]


def test_scoring_without_the_lease_commits_its_results_whoever_has_the_run(
    folder: RunFolder,
) -> None:
    run(folder)
    ray = RayHere(then=lambda: begin_attempt(folder).release())
    request = ScoringRequest(
        storage=folder.storage,
        run=folder.name,
        config=folder.record().config,
        infer_input="validation",
    )
    scoring = ScoringStages(request, ray)
    scoring.prepare()
    best = folder.summary(folder.checkpoints()[-1])
    result = scoring.infer(INFER.arguments(checkpoint=best, source="validation"))
    scoring.close("FINISHED")
    ((key, manifest),) = folder.results("predictions", PredictionsManifest)
    assert result.uri == folder.store.uri(key)
    assert manifest.num_rows == result.num_rows > 0


def test_a_driver_that_begins_collects_what_a_dead_one_left(folder: RunFolder) -> None:
    begin_attempt(folder).release()
    run(folder)
    (committed,) = folder.checkpoints()
    folder.store.write(f"checkpoints/step-00000099-a0001/{MODEL_FILE}", b"half a checkpoint")
    folder.store.write("journal/steps-00000006-00000099-a0001.jsonl", b"{}")
    segments = [entry.name for entry in committed.manifest.journal]
    HeldRun.take(folder).release(EndStatus.FAILED)
    assert folder.store.names("checkpoints") == [str(committed.name)]
    assert folder.store.names("journal") == segments


def test_the_lease_and_the_workers_get_their_times_from_the_drivers(folder: RunFolder) -> None:
    run(folder)
    timing = Timing(CoordinationTiming(heartbeat_s=0.05), ClusterTiming(start_s=7.0))
    held = HeldRun.take(folder, timing=timing)
    try:
        assert held.lease.timing is timing.coordination
    finally:
        held.release(EndStatus.FAILED)
    pool = ClusterRaySession(timing).pool_for_training(folder.record().config)
    assert pool.timing is timing.cluster


class TakenMeanwhile(Store):
    """Another driver takes the run while orphans are looked for in the journal."""

    def names(self, key: str = "") -> list[str]:
        if key == JOURNAL:
            self.create("lease/0003.json", self.read("lease/0002.json"))
        return super().names(key)


def test_a_run_that_is_replaced_as_it_is_taken_is_released_again(folder: RunFolder) -> None:
    begin_attempt(folder).release()
    run(folder)
    folder.store.write("journal/steps-00000006-00000099-a0001.jsonl", b"{}")
    folder.store = TakenMeanwhile(folder.url)
    with pytest.raises(FencedError):
        HeldRun.take(folder)
    assert lease.end_of(folder.store, 2) == EndStatus.FAILED
    assert not [thread for thread in threading.enumerate() if thread.name == "heartbeat"]


@pytest.mark.parametrize("done", [False, True], ids=["refused", "lost answer"])
def test_a_restart_in_an_outage_is_tried_again(
    folder: RunFolder, tmp_path: Path, done: bool
) -> None:
    """Whichever object of a new attempt is not created, the next try has the run all the same."""
    run(folder)
    for number in count(1):
        store = FaultyStore(folder.url, tmp_path / f"notes-{number}")
        again = RunFolder(folder.storage, folder.name)
        held = HeldRun.take(again)
        first = held.supervisor.begin_attempt()
        again.store = held.lease.store = store
        store.fail_at(number, kind="create", done=done)
        try:
            # The heart's own writes are none of these.
            second = held.supervisor.begin_attempt()
        except StorageError:
            failed = True
            second = held.supervisor.begin_attempt()
        else:
            failed = False
        held.release(EndStatus.FAILED)
        assert first < second == lease.newest_attempt(folder.store)
        if not failed:
            assert number > 2
            return
