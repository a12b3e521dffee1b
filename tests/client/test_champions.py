"""Champions as functions: their log, a way back, and a person's answer."""

from __future__ import annotations

import getpass
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.storage.champions import MODEL, approval, decision, entry
from tests.storage.samples import commit, manifest, record
from train_core.client import champions
from train_core.client.runs import delete_run, prune_run
from train_core.errors import ConfigError
from train_core.policy.champion.gate_decision import Outcome
from train_core.policy.checkpoints.retention import RetentionRules
from train_core.results import Approval, Decision, GateResult, ModelVersion
from train_core.storage.coordination.pins import REGISTERED_MODEL, pin
from train_core.storage.records.documents import with_checksum
from train_core.storage.registered_models.decisions import decision_key, entry_of
from train_core.storage.registered_models.model_registry import ModelRegistry
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import ResultWriter, begin_attempt, create_run


class Models:
    """Runs whose checkpoints are registered, decided on, and made champion by a test."""

    def __init__(self, storage: str) -> None:
        self.storage = storage
        self.registry = ModelRegistry(storage, MODEL)

    def folder(self, run: str) -> RunFolder:
        return RunFolder(self.storage, run)

    def register(self, run: str) -> ModelVersion:
        """A run with one checkpoint, which is a version."""
        folder = self.folder(run)
        create_run(folder, record(run))
        name = commit(folder, 1, 1)
        pin(folder.store, name, REGISTERED_MODEL, "it is a version", is_lasting=True)
        digest = folder.find(str(name)).digest
        return self.registry.add_version(run, str(name), digest)

    def decide(self, version: ModelVersion, outcome: Outcome) -> Any:
        champion = self.registry.champion()
        made = decision(version, champion.number if champion else 0, outcome=outcome)
        made = made.model_copy(update={"champion": champion.version if champion else None})
        self.folder(version.run).store.create(decision_key(made), with_checksum(made))
        return made

    def promote(self, run: str) -> ModelVersion:
        version = self.register(run)
        made = self.decide(version, Outcome.PROMOTE)
        self.registry.add_champion(entry_of(self.folder(run), made, None))
        return version

    def champions(self) -> list[str]:
        return [one.version.run for one in champions.champions(self.storage, MODEL)]


@pytest.fixture
def models(tmp_path: Path) -> Models:
    return Models(str(tmp_path / "runs"))


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
    models.decide(models.registry.version(1), Outcome.KEEP)
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
    made = decision(waiting, 1, outcome=Outcome.ASK)
    answers = models.folder("b").store
    answers.create(
        f"decisions/{MODEL}/answers/v00000002-c00000001.json", with_checksum(approval(made))
    )
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
    # As an earlier evertrain did, which compared it again.
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


class PromotedMeanwhile(ResultWriter):
    """Between the look at the champion and the answer, the run's own gate makes it champion."""

    models: Models
    waiting: ModelVersion

    def commit_approval(self, decision: Decision, given: Approval) -> None:
        self.models.promote("c")
        later = self.models.decide(self.waiting, Outcome.PROMOTE)
        self.models.registry.add_champion(entry_of(self.models.folder("b"), later, None))
        super().commit_approval(decision, given)


@pytest.mark.promise("no-is-final")
def test_who_rejects_a_version_that_became_champion_just_now_is_told_so(
    models: Models, waiting: ModelVersion, monkeypatch: pytest.MonkeyPatch
) -> None:
    PromotedMeanwhile.models, PromotedMeanwhile.waiting = models, waiting
    monkeypatch.setattr(champions, "ResultWriter", PromotedMeanwhile)
    with pytest.raises(ConfigError, match=r"became champion just now.* `evertrain rollback"):
        approve(models, is_approved=False)
    assert models.champions() == ["a", "c", "b"]


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
        f"{models.registry.store.url}, which forgets the registered model"
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
    models.registry.store.write("champions/00000001.json", b"{}")
    for call in (
        lambda: delete_run(models.folder("a")),
        lambda: prune_run(models.folder("a")),
    ):
        with pytest.raises(ValueError, match="not a champion's entry"):
            call()
    assert models.folder("a").checkpoints()


def test_two_rollbacks_at_once_are_one(models: Models) -> None:
    """Whoever comes second has seen another champion, and is told so."""
    for run in "abc":
        models.promote(run)
    entries = champions.champions(models.storage, MODEL)
    roll_back(models, to=1)
    other = entries[-1].model_copy(
        update={"number": 4, "by": "rollback", "decided_by": "ann", "version": entries[1].version}
    )
    with pytest.raises(ConfigError, match="another champion of 'Digits' was chosen just now"):
        champions._added(models.registry, other)


@pytest.mark.promise("champion-stays")
@pytest.mark.parametrize("is_new", [True, False], ids=["a model of its own", "one of this version"])
def test_a_model_that_a_newer_evertrain_keeps_is_not_changed_and_says_why(
    models: Models, *, is_new: bool
) -> None:
    """It will close both logs by their next numbers (docs/decisions/026-champion-log.md)."""
    if not is_new:
        models.promote("a")
        models.decide(models.register("b"), Outcome.ASK)
        begin_attempt(models.folder("a")).release()
    registry = models.registry
    for log, there in (("versions", registry.versions()), ("champions", registry.champions())):
        newer = decision().model_copy(update={"format": 2})
        registry.store.create(f"{log}/{len(there) + 1:08d}.json", with_checksum(newer))
    acts: list[Callable[[], Any]] = [
        registry.champion,
        lambda: registry.add_version("c", "step-00000001-a0001", "0" * 64),
        lambda: registry.add_champion(entry(1 if is_new else 2)),
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
