"""The gate and the promotion: one version, one decision, one champion, whatever dies in between.

Rows are scored by the workers of a real Ray.
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.champion.samples import add_events
from tests.marks import SLOW, slow
from tests.rank.alone import run
from tests.storage.doubles.faulty_store import FaultyStore
from train_core import TrainConfig
from train_core.champion.log import ModelLog
from train_core.champion.of_run import gates_of
from train_core.client.champions import approve, rollback
from train_core.cluster.pool import WorkerPool
from train_core.driver.gate_stages import Gate
from train_core.driver.held_run import HeldRun
from train_core.errors import FencedError, StorageError
from train_core.policy.champion.gate_decision import Outcome
from train_core.policy.champion.gate_options import GateOptions
from train_core.policy.end_status import EndStatus
from train_core.results import Approval, GateResult, ModelVersion
from train_core.scoring import gate_evidence
from train_core.scoring.evaluate import evaluate
from train_core.storage.coordination.pins import REGISTERED_MODEL, valid_pins
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import begin_attempt

pytestmark = pytest.mark.timeout(240)

MODEL = "Linear"
ASKED: dict[str, Any] = {
    "workload": "tests.rank.tiny:Linear",
    "settings": {"momentum": 0.9, "learning_rate": 0.1, "augmentation": 0.0, "one_cycle": False},
    "num_workers": 2,
    "cpus_per_worker": 0.5,
    "gpus_per_worker": 0,
    "num_shards": 2,
}
STEPS = {"bad": 1, "good": 40, "same": 40}
"""Runs by their names; "same" has the weights of "good"."""


@pytest.fixture(autouse=True)
def few_resamples(monkeypatch: pytest.MonkeyPatch) -> None:
    """How many there are is a matter of tests/scoring; all of them take half of the time here."""
    monkeypatch.setattr(gate_evidence, "NUM_RESAMPLES", 200)


@pytest.fixture(scope="module")
def pool(process_ray: None) -> Iterator[WorkerPool]:
    found = WorkerPool(TrainConfig(**ASKED), ["train_core.scoring.gate_rows"])
    yield found
    found.end_for_good()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A storage with the runs, of which none is registered yet."""
    storage = tmp_path_factory.mktemp("trained")
    for name, steps in STEPS.items():
        run(RunFolder(str(storage), name), **ASKED, epochs=100, max_steps=steps)
    return storage


@dataclass
class Pipeline:
    """One driver's gate."""

    folder: RunFolder
    gate: Gate

    def decide(self) -> GateResult:
        return self.gate.decide(self.folder.summary(self.folder.checkpoints()[-1]))

    def promote(self, result: GateResult, approval: Approval | None = None) -> GateResult:
        return self.gate.promote(result, approval)

    def to_the_end(self) -> GateResult:
        return self.promote(self.decide())


class Place:
    """A copy of the trained runs, where the gates of a test do their work."""

    def __init__(self, copied: Path, storage: Path, pool: WorkerPool) -> None:
        shutil.copytree(copied, storage)
        self.storage = str(storage)
        self.log = ModelLog(self.storage, MODEL)
        self._pool = pool

    def folder(self, name: str) -> RunFolder:
        return RunFolder(self.storage, name)

    @contextmanager
    def driving(
        self, name: str, notes: Path | None = None, **options: Any
    ) -> Iterator[tuple[Pipeline, FaultyStore]]:
        """The gate of a driver that has the run, and the double that its changes go through."""
        folder = self.folder(name)
        config = folder.record().config.model_copy(update={"epochs": 100})
        held = HeldRun.take(folder)

        def workers() -> WorkerPool:
            self._pool.start_for_scoring(config)
            return self._pool

        gate = Gate(folder, config, GateOptions(**options), held, workers)
        # The heartbeats' own writes are none of those that fail.
        notes = notes or Path(self.storage, f"notes-{name}")
        folder.store = store = FaultyStore(folder.store.url, notes)
        gate.log.store = FaultyStore(gate.log.store.url, notes)
        try:
            yield Pipeline(folder, gate), store
        finally:
            held.release(EndStatus.FAILED)

    def gated(self, name: str, **options: Any) -> GateResult:
        """The whole gate of a run."""
        with self.driving(name, **options) as (pipeline, _):
            return pipeline.to_the_end()

    def versions(self) -> list[ModelVersion]:
        found = self.log.read().versions
        return [found[number] for number in sorted(found)]

    def decisions(self, name: str) -> list[tuple[int, int]]:
        """The comparisons of a run's versions that were decided."""
        found = self.log.read().decisions
        return sorted(one for one, made in found.items() if made.challenger.run == name)

    def champions(self) -> list[str]:
        """The runs of all champions, oldest first."""
        return [entry.version.run for entry in self.log.read().entries]


@pytest.fixture
def place(trained: Path, tmp_path: Path, pool: WorkerPool) -> Place:
    return Place(trained, tmp_path / "runs", pool)


@pytest.fixture(scope="module")
def with_champion(
    trained: Path, pool: WorkerPool, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The storage after the gate of "bad", which is the first champion."""
    place = Place(trained, tmp_path_factory.mktemp("champion") / "runs", pool)
    assert place.gated("bad").entry
    return Path(place.storage)


@dataclass
class Overtaken:
    """A storage where "same" was to follow the champion "bad", and "good" came first."""

    storage: Path
    decided: GateResult
    """Of "same", in comparison with "bad"."""


@pytest.fixture(scope="module")
def overtaken(
    with_champion: Path, pool: WorkerPool, tmp_path_factory: pytest.TempPathFactory
) -> Overtaken:
    place = Place(with_champion, tmp_path_factory.mktemp("overtaken") / "runs", pool)
    with place.driving("same", min_improvement=-1) as (pipeline, _):
        decided = pipeline.decide()
        place.gated("good")
    return Overtaken(Path(place.storage), decided)


def check_log(place: Place) -> None:
    """Each champion follows from one decision, which compared it with the champion before it."""
    history = place.log.read()
    history.check_whole()
    versions = history.versions
    assert sorted(versions) == list(range(1, len(versions) + 1))
    runs = [one.run for one in versions.values()]
    assert len(runs) == len(set(runs)), "a checkpoint has two versions"
    entries = history.entries
    assert [entry.number for entry in entries] == list(range(1, len(entries) + 1))
    for number, entry in enumerate(entries):
        assert versions[entry.version.version] == entry.version
        decision = history.decisions[entry.version.version, number]
        result = history.result(decision)
        assert result.entry == entry
        assert result.decision_uri == f"{place.storage}/{entry.decided_by}"
        assert decision.outcome is Outcome.PROMOTE
        assert decision.champion == (entries[number - 1].version if number else None)


@pytest.mark.promise("first-champion")
def test_the_first_champion_needs_nobody_to_be_better_than(place: Place) -> None:
    result = place.gated("bad")
    assert result.entry
    assert (result.entry.by, result.entry.number, result.entry.version.version) == ("gate", 1, 1)
    assert result.decision.champion is None
    assert result.decision.evidence.improvement is None
    assert place.champions() == ["bad"]
    assert place.decisions("bad") == [(1, 0)]
    check_log(place)


@pytest.mark.promise("first-champion")
def test_one_that_is_too_bad_is_no_first_champion(place: Place) -> None:
    result = place.gated("bad", gate_metric="accuracy", gate_minimum=0.99)
    assert (result.decision.outcome, result.entry) == (Outcome.KEEP, None)
    assert place.champions() == []
    assert [one.run for one in place.versions()] == ["bad"]


@pytest.mark.promise("gate-evidence")
def test_the_better_model_wins_and_the_worse_one_does_not(place: Place) -> None:
    place.gated("bad")
    better = place.gated("good")
    found = better.decision.evidence
    assert better.entry
    assert found.improvement
    assert found.improvement.low > 0
    assert found.champion
    assert set(found.champion.recalls) == set(found.challenger.recalls) == {"zero", "one", "two"}
    for score in (found.champion, found.challenger):
        assert score.row_ms > 0
        assert score.batch_ms > 0
        assert score.size_bytes == 4 * (8 * 3 + 3)
    comparison = better.decision.comparison
    assert (comparison.split, comparison.num_rows) == ("test", 40)
    assert comparison.num_resamples > 0
    assert comparison.mcnemar
    same = place.gated("same")
    assert (same.decision.outcome, same.entry) == (Outcome.KEEP, None)
    assert same.decision.evidence.improvement
    assert same.decision.evidence.improvement.low == same.decision.evidence.improvement.high == 0
    assert place.champions() == ["bad", "good"]
    check_log(place)


@pytest.mark.promise("gate-rows")
@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_both_are_scored_as_an_evaluation_of_theirs_would_to_the_bit(
    place: Place, pool: WorkerPool, metric: str
) -> None:
    place.gated("bad")
    with place.driving("good", gate_metric=metric) as (pipeline, _):
        evidence = pipeline.decide().decision.evidence
    assert evidence.champion
    for name, score in (("good", evidence.challenger), ("bad", evidence.champion)):
        folder = place.folder(name)
        held = HeldRun.take(folder)
        summary, config = folder.summary(folder.checkpoints()[-1]), folder.record().config
        pool.start_for_scoring(config)
        (evaluated,) = evaluate(pool, held.writer, config, [summary], "test")
        held.release(EndStatus.FAILED)
        assert evaluated.metrics[metric] == score.metric


def test_what_may_become_champion_is_pinned_before_it_is_a_version(place: Place) -> None:
    with place.driving("bad") as (pipeline, store):
        store.fail_at(1, kind="create")
        with pytest.raises(StorageError):
            pipeline.decide()
    assert [pin.who for pin in valid_pins(place.folder("bad").store)] == [REGISTERED_MODEL]
    assert place.versions() == []


WHEN = [pytest.param(False, id="before it"), pytest.param(True, id="after it", marks=SLOW)]


def end_at(place: Place, name: str, number: int, *, done: bool) -> bool:
    """Run the gate of a run, which ends at its change of that number; whether it got through."""
    notes = Path(place.storage, f"notes-{name}-{number}-{done}")
    with place.driving(name, notes) as (pipeline, store):
        store.fail_at(number, done=done)
        try:
            pipeline.to_the_end()
        except StorageError:
            return False
    return True


@pytest.mark.promise("gate-killed")
@pytest.mark.parametrize("done", WHEN)
@pytest.mark.parametrize(
    ("begun_with", "expected"),
    [("trained", ["good"]), ("with_champion", ["bad", "good"])],
    ids=["first", "second"],
)
def test_a_gate_that_ends_at_any_change_is_completed_by_the_next_driver(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    pool: WorkerPool,
    begun_with: str,
    expected: list[str],
    done: bool,
) -> None:
    storage: Path = request.getfixturevalue(begun_with)
    for number in count(1):
        place = Place(storage, tmp_path / f"{number}", pool)
        is_through = end_at(place, "good", number, done=done)
        check_log(place)
        # What the dead one had committed, the next one uses.
        left = place.versions(), place.decisions("good")
        result = place.gated("good")
        assert result.entry
        assert place.champions() == expected
        assert [one.run for one in place.versions()] == expected
        assert len(place.decisions("good")) == 1
        assert place.versions()[: len(left[0])] == left[0]
        check_log(place)
        if is_through:
            # The pin, the version, its note, the decision, the champion; at first both closings.
            assert number == (8 if begun_with == "trained" else 6)
            return


@pytest.mark.promise("one-champion")
def test_two_that_promote_at_once_leave_one_champion_after_the_other(place: Place) -> None:
    place.gated("bad")
    # Any difference will do, so that the later one is champion after the other.
    with (
        place.driving("good", min_improvement=-1) as (one, _),
        place.driving("same", min_improvement=-1) as (other, _),
    ):
        results = [one.decide(), other.decide()]
        assert all(result.decision.champion_number == 1 for result in results)
        begin = threading.Barrier(2)

        def promote(pipeline: Pipeline, result: GateResult) -> GateResult:
            begin.wait()
            return pipeline.promote(result)

        with ThreadPoolExecutor(2) as threads:
            ends = list(threads.map(promote, (one, other), results))
    assert [end.entry is not None for end in ends] == [True, True]
    assert sorted(end.decision.champion_number for end in ends) == [1, 2]
    assert len(place.champions()) == 3
    check_log(place)


@pytest.mark.promise("one-champion")
def test_who_comes_second_is_compared_with_the_one_who_came_first(place: Place) -> None:
    place.gated("bad")
    with place.driving("good") as (one, _), place.driving("same") as (other, _):
        of_one, of_other = one.decide(), other.decide()
        assert of_one.decision.outcome is of_other.decision.outcome is Outcome.PROMOTE
        first, second = one.promote(of_one), other.promote(of_other)
    assert first.entry
    assert (second.entry, second.decision.outcome) == (None, Outcome.KEEP)
    assert second.decision.champion == first.entry.version
    assert place.decisions("same") == [(3, 1), (3, 2)]
    assert place.champions() == ["bad", "good"]
    check_log(place)


@pytest.mark.promise("gate-killed")
@pytest.mark.parametrize("done", WHEN)
@pytest.mark.parametrize(
    "is_new_driver",
    [pytest.param(False, id="a retry"), pytest.param(True, id="another driver", marks=SLOW)],
)
def test_one_that_is_overtaken_and_ends_at_any_change_is_completed(
    overtaken: Overtaken, tmp_path: Path, pool: WorkerPool, done: bool, is_new_driver: bool
) -> None:
    for number in count(1):
        place = Place(overtaken.storage, tmp_path / f"{number}", pool)
        notes = tmp_path / f"notes-{number}"
        with place.driving("same", notes, min_improvement=-1) as (pipeline, store):
            store.fail_at(number, done=done)
            try:
                pipeline.promote(overtaken.decided)
                is_through = True
            except StorageError:
                is_through = False
            store.work_again()
            if not is_new_driver:
                result = pipeline.promote(overtaken.decided)
        if is_new_driver:
            result = place.gated("same", min_improvement=-1)
        assert result.entry
        assert result.entry.number == 3
        assert place.champions() == ["bad", "good", "same"]
        assert len(place.decisions("same")) == 2
        check_log(place)
        # The new decision, the new entry: the lost entry is not tried.
        if is_through:
            assert number == 3
            return


@pytest.mark.promise("gate-killed")
def test_the_same_pipeline_again_changes_nothing(place: Place) -> None:
    first = place.gated("bad")
    assert place.gated("bad") == first
    second = place.gated("good")
    assert place.gated("good") == second
    # Now it is compared with its successor, whom it does not beat.
    again = place.gated("bad")
    assert again.decision.champion == second.decision.challenger
    assert again.entry is None
    assert place.champions() == ["bad", "good"]


def answer_to(result: GateResult, *, is_approved: bool = True) -> Approval:
    return Approval(
        version=result.decision.challenger,
        champion_number=result.decision.champion_number,
        is_approved=is_approved,
        person="ann",
        reason="looked at it",
        created_at="2026-01-01T00:00:00+00:00",
    )


@pytest.mark.promise("approval")
def test_an_approved_version_is_champion_and_a_rejected_one_is_not(place: Place) -> None:
    with place.driving("bad", require_approval=True) as (pipeline, _):
        asked = pipeline.promote(pipeline.decide())
        assert (asked.decision.outcome, asked.entry) == (Outcome.ASK, None)
        assert place.champions() == []
        approved = pipeline.promote(asked, answer_to(asked))
        assert approved.entry
        assert approved.entry.by == "approval"
    with place.driving("good", require_approval=True) as (pipeline, _):
        asked = pipeline.decide()
        rejected = pipeline.promote(asked, answer_to(asked, is_approved=False))
        assert rejected.entry is None
        assert rejected.status == "rejected"
        # The first answer counts.
        assert pipeline.promote(asked, answer_to(asked)).status == "rejected"
    assert place.champions() == ["bad"]


@pytest.mark.promise("approval")
def test_who_approved_one_comparison_is_asked_again_about_another(place: Place) -> None:
    place.gated("bad")
    with place.driving("same", require_approval=True, min_improvement=-1) as (pipeline, _):
        asked = pipeline.decide()
        place.gated("good")
        again = pipeline.promote(asked, answer_to(asked))
        assert (again.decision.outcome, again.approval, again.entry) == (Outcome.ASK, None, None)
        assert again.decision.champion
        assert again.decision.champion.run == "good"
        assert place.champions() == ["bad", "good"]
        approved = pipeline.promote(again, answer_to(again))
        assert approved.entry
    assert place.champions() == ["bad", "good", "same"]


@pytest.mark.promise("no-is-final")
def test_a_rejected_version_stays_rejected_whoever_is_champion_when_its_run_goes_on(
    place: Place,
) -> None:
    place.gated("bad")
    with place.driving("same", require_approval=True, min_improvement=-1) as (pipeline, _):
        asked = pipeline.decide()
        rejected = pipeline.promote(asked, answer_to(asked, is_approved=False))
    # It would be better than this one, and the rules ask nobody any more.
    place.gated("good", min_improvement=-1)
    again = place.gated("same", min_improvement=-1)
    assert (again.status, again.decision) == ("rejected", rejected.decision)
    assert place.champions() == ["bad", "good"]
    assert len(place.decisions("same")) == 1


@pytest.mark.promise("no-is-final")
def test_a_no_to_an_earlier_comparison_counts_while_the_version_is_compared_again(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The form of a flow run that waits asks about the champion before."""
    place.gated("bad")
    with place.driving("same", require_approval=True, min_improvement=-1) as (pipeline, _):
        asked = pipeline.decide()
    place.gated("good")
    with place.driving("same", min_improvement=-1) as (pipeline, _):
        compare = pipeline.gate._new_decision

        def rejected_meanwhile(*compared: Any) -> None:
            compare(*compared)
            no = answer_to(asked, is_approved=False)
            add_events(place.storage, no)

        monkeypatch.setattr(pipeline.gate, "_new_decision", rejected_meanwhile)
        result = pipeline.to_the_end()
    assert result.status == "rejected"
    assert (result.decision, len(place.decisions("same"))) == (asked.decision, 2)
    assert place.champions() == ["bad", "good"]


@pytest.mark.promise("no-is-final")
def test_an_answer_that_comes_second_is_told_whose_answer_counts(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    place.gated("bad")
    with place.driving("good", require_approval=True) as (pipeline, _):
        asked = pipeline.decide()
        approve(place.storage, MODEL, 2, "owls suffer", is_approved=False, person="bob")
        result = pipeline.promote(asked, answer_to(asked))
        assert result.status == "rejected"
        told = "the answer of ann (approve) came second: models:/Linear/2 is rejected by bob"
        assert told in caplog.text
        # The same answer is none that came second.
        caplog.clear()
        assert pipeline.promote(asked, answer_to(asked, is_approved=False)).status == "rejected"
        assert "came second" not in caplog.text
    assert place.champions() == ["bad"]


@pytest.mark.promise("no-is-final")
def test_a_rejected_version_that_was_gone_back_to_is_no_challenger_later(place: Place) -> None:
    """To go back is a person's new act: it makes it champion, and nothing else."""
    place.gated("bad")
    with place.driving("same", require_approval=True, min_improvement=-1) as (pipeline, _):
        asked = pipeline.decide()
        pipeline.promote(asked, answer_to(asked, is_approved=False))
    entry = rollback(place.storage, MODEL, "we have no other", to=2, person="ann")
    assert place.gated("same", min_improvement=-1).entry == entry
    place.gated("good", min_improvement=-1)
    assert place.gated("same", min_improvement=-1).status == "rejected"
    assert place.champions() == ["bad", "same", "good"]


@pytest.mark.promise("rollback")
def test_a_run_whose_version_was_gone_back_to_is_champion_by_that(place: Place) -> None:
    place.gated("bad")
    place.gated("good")
    entry = rollback(place.storage, MODEL, "the shop complains", person="ann")
    assert entry.version.run == "bad"
    result = place.gated("bad")
    assert result.entry == entry
    assert result.summary == (
        "models:/Linear/1 became champion: ann went back to it (the shop complains)"
    )


@pytest.mark.promise("gate-rules")
@pytest.mark.parametrize(
    ("on_changed_data", "outcome"),
    [("compare", Outcome.PROMOTE), ("ask", Outcome.ASK), ("keep", Outcome.KEEP)],
)
def test_other_rows_than_those_of_the_champions_choice_are_noticed(
    place: Place, on_changed_data: str, outcome: Outcome
) -> None:
    entry = place.gated("bad").entry
    assert entry
    other = entry.model_copy(update={"number": 2, "data_digest": "0" * 64, "decided_by": "me"})
    add_events(place.storage, other)
    with place.driving("good", on_changed_data=on_changed_data) as (pipeline, _):
        decision = pipeline.decide().decision
    assert decision.evidence.has_changed_data
    assert decision.outcome is outcome


def test_a_driver_that_was_replaced_registers_and_decides_nothing(place: Place) -> None:
    with place.driving("bad") as (pipeline, _):
        store = place.folder("bad").store
        newest = max(name for name in store.names("lease") if len(name) == len("0001.json"))
        store.create(f"lease/{int(newest[:4]) + 1:04d}.json", store.read(f"lease/{newest}"))
        with pytest.raises(FencedError):
            pipeline.decide()
    assert place.versions() == []
    assert gates_of(place.folder("bad")) == []


def test_a_run_registers_the_better_checkpoint_that_it_has_later(place: Place) -> None:
    """The decision on the first one stays beside that on the second."""
    first = place.gated("bad")
    folder = place.folder("bad")
    held = begin_attempt(folder)
    run(folder, held.attempt, **ASKED, epochs=100, max_steps=STEPS["good"])
    held.release()
    second = place.gated("bad")
    assert second.entry
    assert [one.version for one in place.versions()] == [1, 2]
    kept = {one.decision.challenger.version for one in (first, second)}
    found = {one.result.decision.challenger.version for one in gates_of(folder)}
    assert found == kept == {1, 2}
    assert all(before < after for before, after in pairwise(place.decisions("bad")))


def delete_checkpoint(place: Place) -> str:
    place.folder("bad").store.delete("checkpoints")
    return "does not exist"


def damage_weights(place: Place) -> str:
    folder = place.folder("bad")
    (checkpoint,) = folder.checkpoints()
    key = f"{checkpoint.key}/model.safetensors"
    data = folder.store.read(key)
    folder.store.write(key, bytes([data[0] ^ 1]) + data[1:])
    return "is quarantined"


def delete_run(place: Place) -> str:
    place.folder("bad").store.delete("")
    return "does not exist"


@pytest.mark.promise("gate-rules")
@pytest.mark.parametrize("spoil", [slow(delete_checkpoint), damage_weights, slow(delete_run)])
def test_a_champion_that_cannot_be_scored_is_a_persons_matter(
    with_champion: Path, tmp_path: Path, pool: WorkerPool, spoil: Callable[[Place], str]
) -> None:
    # The last test of the file, as the workers end by it. They keep a model that they have
    # verified: they have not seen this copy.
    place = Place(with_champion, tmp_path / "runs", pool)
    why = spoil(place)
    with place.driving("good") as (pipeline, _):
        asked = pipeline.to_the_end()
        assert asked.decision.outcome is Outcome.ASK
        assert why in asked.decision.evidence.failure
        assert "\n" not in asked.summary
        approved = pipeline.promote(asked, answer_to(asked))
        assert approved.entry
    assert place.champions() == ["bad", "good"]
