"""Champions as functions: their log, a way back, and a person's answer."""

from __future__ import annotations

import getpass
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.champion.samples import (
    MODEL,
    add_events,
    approval,
    decision,
    note,
    version,
    write_earlier,
)
from tests.storage.samples import commit, manifest, record
from train_core.champion.history import ModelHistory
from train_core.champion.log import Judge, ModelLog
from train_core.champion.records import Record
from train_core.client import champions
from train_core.client.runs import delete_run, prune_run
from train_core.errors import CheckpointError, ConfigError
from train_core.policy.champion.gate_decision import Outcome
from train_core.policy.checkpoints.retention import RetentionRules
from train_core.results import Approval, Decision, GateResult, ModelVersion
from train_core.storage.coordination.pins import REGISTERED_MODEL, pin
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import with_checksum
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import begin_attempt, create_run


class Models:
    """Runs whose checkpoints are registered, decided on, and made champion by a test.

    With `is_before` as an evertrain of before the log does it, until somebody has begun a log.
    """

    def __init__(self, storage: str, *, is_before: bool = False) -> None:
        self.storage = storage
        self.log = ModelLog(storage, MODEL)
        self.is_before = is_before

    def folder(self, run: str) -> RunFolder:
        return RunFolder(self.storage, run)

    def add(self, of: Record) -> ModelHistory:
        if self.is_before and not self.log.store.names("log"):
            write_earlier(self.storage, of)
            return self.log.read()
        return add_events(self.storage, of)

    def register(self, run: str) -> ModelVersion:
        """A run with one checkpoint, which is a version."""
        folder = self.folder(run)
        create_run(folder, record(run))
        name = commit(folder, 1, 1)
        pin(folder.store, name, REGISTERED_MODEL, "it is a version", is_lasting=True)
        number = max(self.log.read().versions, default=0) + 1
        digest = folder.find(str(name)).digest
        made = version(number, run).model_copy(update={"checkpoint_digest": digest})
        history = self.add(made)
        if history.number_of(made):
            note(folder, history, made)
        return made

    def decide(self, version: ModelVersion, outcome: Outcome) -> Decision:
        champion = self.log.read().champion
        made = decision(version, champion.number if champion else 0, outcome=outcome)
        made = made.model_copy(update={"champion": champion.version if champion else None})
        self.add(made)
        return made

    def enter(self, made: Decision) -> None:
        """Make the challenger the champion."""
        history = self.log.read()
        self.add(history.entry_of(history.result(made)))

    def promote(self, run: str) -> ModelVersion:
        version = self.register(run)
        self.enter(self.decide(version, Outcome.PROMOTE))
        return version

    def champions(self) -> list[str]:
        return [one.version.run for one in champions.champions(self.storage, MODEL)]


@pytest.fixture(params=[False, True], ids=["log", "before"])
def models(tmp_path: Path, request: pytest.FixtureRequest) -> Models:
    return Models(str(tmp_path / "runs"), is_before=request.param)


def roll_back(models: Models, **asked: Any) -> str:
    return champions.rollback(models.storage, MODEL, "it was better", **asked).version.run


@pytest.mark.promise("rollback")
def test_a_rollback_goes_back_champion_by_champion(models: Models) -> None:
    for run in "abc":
        models.promote(run)
    assert [roll_back(models), roll_back(models)] == ["b", "a"]
    with pytest.raises(ConfigError, match=f"had no champion before models:/{MODEL}/1$"):
        roll_back(models)
    assert models.champions() == ["a", "b", "c", "b", "a"]
    newest = champions.champions(models.storage, MODEL)[-1]
    assert (newest.by, newest.reason) == ("rollback", "it was better")
    assert newest.decided_by == getpass.getuser()


@pytest.mark.promise("rollback")
def test_any_version_that_was_decided_on_can_be_made_champion(models: Models) -> None:
    models.promote("a")
    kept = models.register("kept")
    models.decide(kept, Outcome.KEEP)
    assert roll_back(models, to=2, person="ann") == "kept"
    assert champions.champions(models.storage, MODEL)[-1].decided_by == "ann"
    assert roll_back(models) == "a"


def without_checkpoint(models: Models) -> None:
    models.folder("b").store.delete("checkpoints")


def with_another(models: Models) -> None:
    other = manifest(1, 1).model_copy(update={"samples_seen": 7})
    key = "checkpoints/step-00000001-a0001/manifest.json"
    models.folder("b").store.write(key, other.to_json())


def with_altered_manifest(models: Models) -> None:
    key = "checkpoints/step-00000001-a0001/manifest.json"
    store = models.folder("b").store
    store.write(key, store.read(key).replace(b"0.5", b"0.7"))


def without_decision(models: Models) -> None:
    models.folder("b").store.delete("decisions")
    for one in models.log.read().found:
        if isinstance(one.record, Decision) and one.record.challenger.run == "b":
            Store(models.storage).delete(one.key)


def is_champion(models: Models) -> None:
    assert roll_back(models) == "b"


@pytest.mark.promise("rollback")
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (without_checkpoint, "models:/Digits/2 cannot be champion: .*does not exist"),
        (with_another, "cannot be champion: step-00000001-a0001 of run 'b' is not what was reg"),
        (with_altered_manifest, "cannot be champion: .*manifest.json: not a manifest"),
        (without_decision, "cannot be champion: the gate has not decided on it"),
        (is_champion, "models:/Digits/2 is the champion already"),
    ],
)
def test_what_cannot_serve_is_not_gone_back_to(
    models: Models, spoil: Callable[[Models], None], said: str
) -> None:
    for run in "abc":
        models.promote(run)
    spoil(models)
    before = models.champions()
    with pytest.raises(ConfigError, match=said):
        roll_back(models, to=2)
    assert models.champions() == before


@pytest.mark.parametrize("model", ["Other", "../Digits", ""])
def test_a_model_that_is_not_there_is_named_with_those_that_are(models: Models, model: str) -> None:
    models.promote("a")
    for call in (
        lambda: champions.champions(models.storage, model),
        lambda: champions.versions(models.storage, model),
        lambda: champions.rollback(models.storage, model, "why"),
        lambda: champions.approve(models.storage, model, 1, "why"),
    ):
        with pytest.raises(ConfigError, match=rf"no registered model '{model}' in .*: Digits$"):
            call()


def test_a_version_or_a_champion_that_is_not_there_is_refused(models: Models) -> None:
    models.register("a")
    with pytest.raises(ConfigError, match="has no champion that could be replaced"):
        roll_back(models)
    with pytest.raises(ConfigError, match="has no version 7: 1"):
        champions.approve(models.storage, MODEL, 7, "why")


@pytest.mark.promise("champions-command")
def test_each_version_comes_with_its_newest_decision(models: Models) -> None:
    models.promote("a")
    models.promote("b")
    waiting = models.register("waiting")
    models.decide(waiting, Outcome.ASK)
    models.register("undecided")
    models.decide(models.log.read().version(1), Outcome.KEEP)
    found = champions.versions(models.storage, MODEL)
    assert [version.run for version, _ in found] == ["a", "b", "waiting", "undecided"]
    assert [result.status if result else None for _, result in found] == [
        "not promoted",
        "became champion",
        "waits for approval",
        None,
    ]


def approve(models: Models, **asked: Any) -> str:
    return champions.approve(models.storage, MODEL, 2, "looked at it", **asked).status


@pytest.fixture
def waiting(models: Models) -> ModelVersion:
    """A version that waits for an answer, beside a champion."""
    models.promote("a")
    version = models.register("b")
    models.decide(version, Outcome.ASK)
    return version


@pytest.mark.promise("approval")
def test_an_approved_version_is_champion(models: Models, waiting: ModelVersion) -> None:
    assert approve(models, person="ann") == "became champion"
    assert models.champions() == ["a", "b"]
    # The same answer again is none.
    assert approve(models) == "became champion"
    assert models.champions() == ["a", "b"]
    with pytest.raises(
        ConfigError, match=r"models:/Digits/2 became champion in place of .*: approved"
    ):
        approve(models, is_approved=False)


@pytest.mark.promise("approval")
def test_an_approval_that_is_carried_out_has_its_result_also_after_another_champion(
    models: Models, waiting: ModelVersion
) -> None:
    """So that Prefect and MLflow follow, if they did not when it was given."""
    approve(models, person="ann")
    models.promote("c")
    assert approve(models) == "became champion"
    assert models.champions() == ["a", "b", "c"]


@pytest.mark.promise("approval")
def test_a_rejected_version_is_not(models: Models, waiting: ModelVersion) -> None:
    assert approve(models, is_approved=False, person="ann") == "rejected"
    assert approve(models, is_approved=False) == "rejected"
    with pytest.raises(ConfigError, match=r'is rejected by ann \("looked at it"\)'):
        approve(models)
    assert models.champions() == ["a"]


@pytest.mark.promise("approval")
def test_an_approval_whose_process_was_killed_is_completed_by_the_same_answer(
    models: Models, waiting: ModelVersion
) -> None:
    models.add(approval(decision(waiting, 1, outcome=Outcome.ASK)))
    assert approve(models, person="bob") == "became champion"
    # Ann's answer was there.
    assert "approved by ann" in champions.champions(models.storage, MODEL)[-1].reason


@pytest.mark.promise("approval")
def test_what_was_compared_with_a_former_champion_is_not_approved(
    models: Models, waiting: ModelVersion
) -> None:
    models.promote("c")
    with pytest.raises(ConfigError, match=r"another champion was chosen since .*runs resume b"):
        approve(models)
    assert approve(models, is_approved=False) == "rejected"


@pytest.mark.promise("no-is-final")
def test_of_two_answers_at_once_one_counts_and_the_other_person_is_told_whose(
    models: Models, waiting: ModelVersion
) -> None:
    begin = threading.Barrier(4)

    def answer(number: int) -> tuple[bool, str]:
        is_approved = number % 2 == 0
        begin.wait()
        try:
            approve(models, is_approved=is_approved, person=f"person {number}")
        except ConfigError as error:
            return is_approved, str(error)
        return is_approved, ""

    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(answer, range(4)))
    _, (_, found) = champions.versions(models.storage, MODEL)
    assert isinstance(found, GateResult)
    assert found.approval
    for is_approved, said in answers:
        assert bool(said) == (is_approved != found.approval.is_approved)
        assert not said or f'by {found.approval.person} ("looked at it")' in said
    assert models.champions() == ["a"] + ["b"] * found.approval.is_approved


@pytest.mark.promise("no-is-final")
def test_a_rejected_version_is_not_approved_later_whoever_is_champion(
    models: Models, waiting: ModelVersion
) -> None:
    approve(models, is_approved=False, person="ann")
    models.promote("c")
    # As an evertrain did that compared it again.
    models.decide(waiting, Outcome.ASK)
    with pytest.raises(ConfigError, match=r"somebody has answered before: .* is rejected by ann"):
        approve(models)
    assert approve(models, is_approved=False) == "rejected"
    _, (_, found), _ = champions.versions(models.storage, MODEL)
    assert isinstance(found, GateResult)
    assert found.status == "rejected"
    assert models.champions() == ["a", "c"]


@pytest.mark.promise("no-is-final")
def test_a_person_may_go_back_to_a_rejected_version_which_is_a_new_act(
    models: Models, waiting: ModelVersion
) -> None:
    approve(models, is_approved=False, person="ann")
    assert roll_back(models, to=2) == "b"
    found = champions.champions(models.storage, MODEL)[-1]
    assert (found.by, found.version) == ("rollback", waiting)


@pytest.fixture
def decided_meanwhile(
    models: Models, waiting: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> Callable[[Outcome], None]:
    """Has the run's own gate decide anew between the look at the champion and the answer."""

    def decide(outcome: Outcome) -> None:
        class Meanwhile(ModelLog):
            def record(self, judge: Judge) -> ModelHistory:
                judge(self.read())
                models.promote("c")
                decided = models.decide(waiting, outcome)
                if outcome is Outcome.PROMOTE:
                    models.enter(decided)
                return super().record(judge)

        monkeypatch.setattr(champions, "ModelLog", Meanwhile)

    return decide


@pytest.mark.promise("no-is-final")
def test_who_rejects_a_version_that_became_champion_just_now_is_told_so(
    models: Models, decided_meanwhile: Callable[[Outcome], None]
) -> None:
    decided_meanwhile(Outcome.PROMOTE)
    with pytest.raises(ConfigError, match=r"is the champion, and nobody .* `evertrain rollback"):
        approve(models, is_approved=False)
    assert models.champions() == ["a", "c", "b"]


@pytest.mark.promise("approval")
def test_who_approves_what_is_compared_again_just_now_is_told_so(
    models: Models, decided_meanwhile: Callable[[Outcome], None]
) -> None:
    decided_meanwhile(Outcome.ASK)
    with pytest.raises(ConfigError, match="was compared with another champion just now"):
        approve(models)
    assert models.champions() == ["a", "c"]
    assert not models.log.read().approvals


@pytest.mark.parametrize("outcome", [Outcome.KEEP, Outcome.PROMOTE, None])
def test_only_what_waits_is_approved(models: Models, outcome: Outcome | None) -> None:
    models.promote("a")
    version = models.register("b")
    if outcome:
        models.decide(version, outcome)
    with pytest.raises(ConfigError, match="the gate does not ask for an approval of models:/Dig"):
        approve(models)


@pytest.mark.promise("champion-stays")
def test_the_run_of_a_champion_is_not_deleted(models: Models) -> None:
    for run in "ab":
        models.promote(run)
        begin_attempt(models.folder(run)).release()
    with pytest.raises(ConfigError) as refused:
        delete_run(models.folder("b"))
    assert str(refused.value) == (
        f"run 'b' has the champion models:/Digits/2 (step-00000001-a0001): make another version "
        f"the champion (`evertrain rollback Digits --reason WHY`), or delete "
        f"{models.log.store.url}, which forgets the registered model"
    )
    assert models.folder("b").checkpoints()
    roll_back(models)
    delete_run(models.folder("b"))
    assert not models.folder("b").exists()
    with pytest.raises(ConfigError, match="run 'a' has the champion models:/Digits/1"):
        delete_run(models.folder("a"))


@pytest.mark.promise("champion-stays")
def test_prune_says_why_a_version_and_the_champion_stay(models: Models) -> None:
    models.promote("a")
    folder = models.folder("a")
    held = begin_attempt(folder)
    for step in (2, 3):
        commit(folder, step, held.attempt)
    held.release()
    rules = RetentionRules(
        monitor="validation/accuracy", monitor_order="max", keep_last=1, keep_best=1
    )
    found = {one.name: one for one in prune_run(folder, rules=rules)}
    first = found["step-00000001-a0001"]
    assert not first.goes
    assert first.why.startswith("the champion models:/Digits/1; pinned: it is a version")
    assert found["step-00000002-a0001"].goes
    assert models.folder("a").find("step-00000001-a0001")


@pytest.mark.promise("champion-stays")
def test_where_champions_cannot_be_listed_nothing_is_deleted(models: Models) -> None:
    models.promote("a")
    begin_attempt(models.folder("a")).release()
    *_, newest = models.log.read().found
    Store(models.storage).write(newest.key, b"{}")
    for call in (
        lambda: delete_run(models.folder("a")),
        lambda: prune_run(models.folder("a")),
    ):
        with pytest.raises(ValueError, match=r"not (a champion's entry|an event of a registered)"):
            call()
    assert models.folder("a").checkpoints()


@pytest.mark.promise("faults-in-rows")
def test_nothing_is_judged_while_a_document_cannot_be_read_until_it_is_restored_or_deleted(
    models: Models, waiting: ModelVersion
) -> None:
    """It may be somebody's rejection."""
    approve(models, is_approved=False, person="ann")
    models.register("c")
    damaged = next(one for one in models.log.read().found if isinstance(one.record, Approval))
    storage, whole = Store(models.storage), Store(models.storage).read(damaged.key)
    storage.write(damaged.key, whole.replace(b"ann", b"bob"))
    for act in (
        lambda: approve(models),
        lambda: roll_back(models, to=1),
        lambda: ModelLog(models.storage, MODEL).register("d", "step-00000001-a0001", "0" * 64),
    ):
        with pytest.raises(CheckpointError) as refused:
            act()
        assert damaged.uri in str(refused.value)
        assert str(refused.value).endswith(
            "until somebody restores or deletes it, nothing is decided on model 'Digits'"
        )
        assert "\n" not in str(refused.value)
    # No other row is hidden.
    rows = champions.versions(models.storage, MODEL)
    first, second, third = rows[:3]
    assert isinstance(first[1], GateResult)
    assert first[1].status == "became champion"
    assert isinstance(second[1], champions.Unreadable)
    assert isinstance(third[0], ModelVersion)
    entries = champions.champions(models.storage, MODEL)
    assert [one.number for one in entries] == [1, None]
    storage.write(damaged.key, whole)
    with pytest.raises(ConfigError, match="somebody has answered before"):
        approve(models)
    storage.delete(damaged.key)
    # A missing event counts for nothing.
    assert approve(models) == "became champion"


class RolledBackMeanwhile(ModelLog):
    """Between the look at the champion and the rollback, somebody goes back to the first one."""

    models: Models

    def record(self, judge: Judge) -> ModelHistory:
        judge(self.read())
        monday = self.models.log.read().entries[0].version
        entry = (
            self.models.log.read()
            .entries[-1]
            .model_copy(
                update={"number": 4, "by": "rollback", "decided_by": "ann", "version": monday}
            )
        )
        self.models.add(entry)
        return super().record(judge)


@pytest.mark.promise("rollback")
def test_two_rollbacks_at_once_are_one(models: Models, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever comes second has seen another champion, and is told so."""
    for run in "abc":
        models.promote(run)
    RolledBackMeanwhile.models = models
    monkeypatch.setattr(champions, "ModelLog", RolledBackMeanwhile)
    with pytest.raises(ConfigError, match="another champion of 'Digits' was chosen just now"):
        roll_back(models)
    assert models.champions() == ["a", "b", "c", "a"]


@pytest.mark.promise("no-is-final")
def test_a_champion_before_that_was_rejected_since_is_gone_back_to_by_its_number_only(
    models: Models,
) -> None:
    first = models.promote("a")
    models.promote("b")
    models.add(approval(models.decide(first, Outcome.ASK), is_approved=False))
    with pytest.raises(ConfigError, match=r"rejected since: .* by ann .*`--to 1` goes back to it"):
        roll_back(models)
    assert models.champions() == ["a", "b"]
    assert roll_back(models, to=1) == "a"


@pytest.mark.promise("champion-stays")
@pytest.mark.parametrize("is_new", [True, False], ids=["a model of its own", "one of this version"])
def test_a_model_that_a_newer_evertrain_keeps_is_not_changed_and_says_why(
    tmp_path: Path, *, is_new: bool
) -> None:
    """It may close both logs of before as this one does (docs/decisions/026-champion-log.md)."""
    models = Models(str(tmp_path / "runs"), is_before=True)
    if not is_new:
        models.promote("a")
        models.decide(models.register("b"), Outcome.ASK)
        begin_attempt(models.folder("a")).release()
    history = models.log.read()
    logs = {"versions": len(history.versions), "champions": len(history.entries)}
    for log, there in logs.items():
        newer = decision().model_copy(update={"format": 2})
        models.log.store.create(f"{log}/{there + 1:08d}.json", with_checksum(newer))
    acts: list[Callable[[], Any]] = [
        lambda: models.log.read().champion,
        lambda: models.log.register("c", "step-00000001-a0001", "0" * 64),
        lambda: roll_back(models, to=1),
    ]
    if not is_new:
        acts += [
            lambda: approve(models),
            lambda: approve(models, is_approved=False),
            lambda: prune_run(models.folder("a")),
            lambda: delete_run(models.folder("a")),
        ]

    def there() -> list[Path]:
        """All but the leases: who prunes takes the run first."""
        return sorted(one for one in Path(models.storage).rglob("*") if "lease" not in one.parts)

    before = there()
    for act in acts:
        with pytest.raises(ConfigError, match="has format 2, this evertrain reads up to 1: use"):
            act()
    assert there() == before
