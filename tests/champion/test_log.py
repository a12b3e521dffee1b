"""The log of a registered model: one winner for each number, and no altered document."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.champion.samples import (
    MODEL,
    add_events,
    approval,
    decision,
    entry,
    version,
    write_earlier,
)
from tests.storage.doubles.faulty_store import FaultyStore
from tests.storage.samples import damaged
from train_core.champion.history import ModelHistory
from train_core.champion.log import ModelLog, registered_models
from train_core.errors import CheckpointError, ConfigError, StorageError
from train_core.policy.champion.gate_decision import Outcome
from train_core.policy.champion.model_names import ModelAddress
from train_core.policy.champion.model_state import NextStep
from train_core.results import ChampionEntry, ModelVersion
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import read_document, with_checksum

RACERS = 8
CHECKPOINT = "step-00000001-a0001"
ASKED = decision(outcome=Outcome.ASK)
REJECTED = approval(ASKED, is_approved=False)


@pytest.fixture
def log(storage_url: str) -> ModelLog:
    return ModelLog(storage_url, MODEL)


def at_once(calls: list[Callable[[], Any]]) -> list[Any]:
    """The results of calls that all begin at the same moment; of one that fails its error."""
    gate = threading.Barrier(len(calls))

    def begin(call: Callable[[], Any]) -> Any:
        gate.wait()
        try:
            return call()
        except Exception as error:  # noqa: BLE001 (the tests look at it)
            return error

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(begin, calls))


@pytest.mark.promise("one-champion")
def test_versions_that_are_claimed_at_once_are_all_different_and_complete(storage_url: str) -> None:
    def claim(run: int) -> ModelVersion:
        made, number = ModelLog(storage_url, MODEL).register(f"run-{run}", CHECKPOINT, f"{run}")
        assert number == made.version
        return made

    made = at_once([partial(claim, run) for run in range(RACERS)])
    assert sorted(one.version for one in made) == list(range(1, RACERS + 1))
    found = ModelLog(storage_url, MODEL).read().versions
    assert list(found) == list(range(1, RACERS + 1))
    assert sorted(found.values(), key=lambda one: one.run) == made


def test_a_checkpoint_is_one_version_however_often_it_is_registered(log: ModelLog) -> None:
    first = log.register("a", CHECKPOINT, "1")
    second = log.register("a", "step-00000002-a0001", "2")
    other = log.register("b", CHECKPOINT, "1")
    assert [number for _, number in (first, second, other)] == [1, 2, 3]
    assert log.register("a", CHECKPOINT, "1") == first
    assert list(log.read().versions.values()) == [first[0], second[0], other[0]]


@pytest.mark.promise("one-champion")
def test_of_many_that_promote_at_once_one_is_champion(storage_url: str) -> None:
    def promote(number: int) -> ModelHistory:
        def first(history: ModelHistory) -> ChampionEntry | None:
            return None if history.champion else entry(1, version(number))

        return ModelLog(storage_url, MODEL).record(first)

    results = at_once([partial(promote, number) for number in range(1, RACERS + 1)])
    (made,) = ModelLog(storage_url, MODEL).read().entries
    assert [one.champion for one in results] == [made] * RACERS


def test_whoever_finds_the_number_taken_judges_again_by_the_new_event(storage_url: str) -> None:
    seen: list[list[ChampionEntry]] = []

    def judge(history: ModelHistory) -> ChampionEntry:
        seen.append(history.entries)
        if len(seen) == 2:
            add_events(storage_url, entry(1))
        return entry(len(history.entries) + 1, version(2))

    # The first time both logs of before are closed.
    ModelLog(storage_url, MODEL).record(judge)
    assert seen == [[], [], [entry(1)]]
    assert ModelLog(storage_url, MODEL).read().entries == [entry(1), entry(2, version(2))]


def test_an_event_is_one_document_that_says_what_it_is(log: ModelLog) -> None:
    back = entry(2, by="rollback", decided_by="ann")
    events = (version(), ASKED, REJECTED, entry(1), back)
    add_events(log.storage, *events)
    names = log.store.names("log")
    assert names == [f"{number:08d}.json" for number in range(1, 6)]
    found = [json.loads(log.store.read(f"log/{name}")) for name in names]
    assert [list(one) for one in found] == [["format", "number", "event", "record", "digest"]] * 5
    assert [one["event"] for one in found] == [
        "registered",
        "decided",
        "answered",
        "promoted",
        "rolled_back",
    ]
    assert tuple(one.record for one in log.read().found) == events


@pytest.mark.promise("address-of-a-model")
def test_an_address_means_a_version(log: ModelLog) -> None:
    made = [log.register(run, CHECKPOINT, run)[0] for run in "abc"]
    add_events(log.storage, entry(1, made[1]))

    def resolved(text: str) -> Any:
        address = ModelAddress.parse(text)
        assert address
        return log.read().resolve(address)

    assert resolved(f"models:/{MODEL}@champion") == made[1]
    assert resolved(f"models:/{MODEL}@challenger") == made[2]
    assert resolved(f"models:/{MODEL}/1") == made[0]
    with pytest.raises(ConfigError, match=r"has no version 7: 1, 2, 3"):
        resolved(f"models:/{MODEL}/7")
    with pytest.raises(ConfigError, match="has no alias 'newest': there are champion and chall"):
        resolved(f"models:/{MODEL}@newest")


@pytest.mark.parametrize("alias", ["champion", "challenger"])
def test_a_model_without_versions_has_no_alias(log: ModelLog, alias: str) -> None:
    with pytest.raises(ConfigError, match=f"model '{MODEL}' in .* has no "):
        log.read().resolve(ModelAddress(MODEL, None, alias))


@pytest.mark.promise("altered-decisions")
@pytest.mark.parametrize("model", [MODEL, "Other"])
def test_an_event_under_another_number_or_model_is_refused(log: ModelLog, model: str) -> None:
    for name in (MODEL, "Other"):
        add_events(log.storage, version(model=name))
    models = Store(log.storage).child("_models")
    log.store.create("log/00000002.json", models.read(f"{model}/log/00000001.json"))
    with pytest.raises(CheckpointError, match="it was renamed"):
        log.read().check_whole()


@pytest.mark.promise("altered-decisions")
@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_an_altered_event_is_refused_and_hides_no_other(
    tmp_path: Path, data: st.DataObject
) -> None:
    log = ModelLog(str(tmp_path), MODEL)
    if not log.store.names("log"):
        add_events(log.storage, version(), ASKED, REJECTED, entry(1))
    number = data.draw(st.integers(1, 4))
    key = f"log/{number:08d}.json"
    whole = log.store.read(key)
    log.store.write(key, data.draw(damaged(whole)))
    try:
        history = ModelLog(str(tmp_path), MODEL).read()
        with pytest.raises(CheckpointError, match=key):
            history.check_whole()
        assert len(history.found) == 4
        with pytest.raises(CheckpointError, match=f"{key}.* until somebody restores or deletes it"):
            ModelLog(str(tmp_path), MODEL).record(lambda _: entry(2))
        assert len(log.store.names("log")) == 4
    finally:
        log.store.write(key, whole)


@pytest.mark.promise("altered-decisions")
def test_an_event_of_a_newer_evertrain_is_no_damage(log: ModelLog) -> None:
    add_events(log.storage, version())
    newer = version(2).model_copy(update={"format": 2})
    log.store.create("log/00000002.json", with_checksum(newer))
    with pytest.raises(ConfigError, match="has format 2, this evertrain reads up to 1"):
        log.record(lambda _: entry(1))


def test_an_event_that_somebody_has_deleted_counts_for_nothing(log: ModelLog) -> None:
    add_events(log.storage, version(), ASKED, REJECTED)
    log.store.delete("log/00000002.json")
    history = log.read()
    history.check_whole()
    assert history.decisions == {}
    # Its number is not given again, and that of a version is not, either.
    log.store.delete("log/00000001.json")
    assert log.read().next_version() == 2
    log.record(lambda _: version(2))
    assert log.store.names("log") == ["00000003.json", "00000004.json"]


class TornStore(Store):
    """Its listings lack a document, as one may that was created while they were made."""

    hidden = ""

    def names(self, key: str) -> list[str]:
        return [name for name in super().names(key) if name != self.hidden]


@pytest.mark.promise("no-is-final")
def test_an_event_that_a_listing_lacks_is_read_if_a_newer_one_is_listed(log: ModelLog) -> None:
    """The gate would not have judged by the rejection, and its event would follow."""
    add_events(log.storage, version(), ASKED, REJECTED, version(2))
    torn = ModelLog(log.storage, MODEL)
    torn.store = store = TornStore(log.store.url)
    store.hidden = "00000003.json"
    assert [one.record for one in torn.read_since(2)] == [ASKED, REJECTED, version(2)]
    seen: list[NextStep] = []

    def promotion(history: ModelHistory) -> ChampionEntry | None:
        seen.append(history.state.next_step(1))
        return None if seen[-1] is NextStep.REJECTED else entry(1)

    assert torn.record(promotion).champion is None
    assert seen == [NextStep.REJECTED]


def test_an_event_after_a_thousand_that_are_missing_is_none_and_hides_no_other(
    log: ModelLog,
) -> None:
    add_events(log.storage, version())
    whole = log.store.read("log/00000001.json")
    no = "is not evertrain's: more than 1,000 numbers before it are missing"
    for number, why in ((1002, "is that of number 1 "), (1003, no), (10**17, no)):
        key = f"log/{number:08d}.json"
        log.store.create(key, whole)
        history = log.read()
        assert list(history.versions) == [1]
        with pytest.raises(CheckpointError, match=f"{key} {why}"):
            history.check_whole()
        assert len(log.read_since(1)) == 2
        log.store.delete(key)


def test_what_is_no_event_is_left_alone(log: ModelLog) -> None:
    log.register("run", CHECKPOINT, "1")
    for name in ("note.txt", "2.json", "00000002.json.tmp", "00000000.json"):
        log.store.write(f"log/{name}", b"somebody's own")
    assert list(log.read().versions) == [1]
    assert log.register("other", CHECKPOINT, "2")[1] == 2


def test_the_models_of_a_storage_are_listed(storage_url: str) -> None:
    assert registered_models(storage_url) == []
    for model in ("B", "a"):
        ModelLog(storage_url, model).register("run", CHECKPOINT, "1")
    assert registered_models(storage_url) == ["B", "a"]


@pytest.mark.parametrize("done", [False, True], ids=["refused", "lost answer"])
@pytest.mark.parametrize("is_before", [False, True], ids=["log", "before"])
def test_an_event_that_failed_is_recorded_once_by_the_next_try(
    tmp_path: Path, done: bool, is_before: bool
) -> None:
    storage = str(tmp_path / "storage")
    if is_before:
        write_earlier(storage, version(run="before"), entry(1, version(run="before")))
    for number in (1, 2, 3):  # Both closings, and the event.
        log = ModelLog(storage, MODEL)
        log.store = store = FaultyStore(log.store.url, tmp_path / f"notes-{number}")
        store.fail_at(1, kind="create", done=done)
        run = f"run-{number}"
        with pytest.raises(StorageError, match="the test has scheduled this"):
            log.register(run, CHECKPOINT, "1")
        made, at = ModelLog(storage, MODEL).register(run, CHECKPOINT, "1")
        assert (made.version, at) == (number + is_before, number)
    history = ModelLog(storage, MODEL).read()
    assert [one.run for one in history.versions.values()] == (
        ["before"] * is_before + ["run-1", "run-2", "run-3"]
    )


def test_what_was_read_once_is_not_read_again(tmp_path: Path) -> None:
    log = ModelLog(str(tmp_path / "storage"), MODEL)
    add_events(log.storage, version(), ASKED)
    log.store = store = FaultyStore(log.store.url, tmp_path / "notes")
    log.read()
    add_events(log.storage, REJECTED)
    before = store.operations.count("read")
    assert len(log.read().found) == 3
    assert store.operations.count("read") <= before + 1


@pytest.mark.promise("earlier-versions")
@pytest.mark.parametrize(
    ("log_name", "kind"), [("versions", ModelVersion), ("champions", ChampionEntry)]
)
@pytest.mark.parametrize("there", [0, 2])
def test_an_evertrain_of_before_meets_a_document_that_it_refuses_in_words(
    log: ModelLog, log_name: str, kind: type[Any], there: int
) -> None:
    """It reads the newest number of each log so, before it registers, promotes or deletes."""
    for number in range(1, there + 1):
        write_earlier(log.storage, version(number), entry(number, version(number)))
    log.register("run", CHECKPOINT, "1")
    newest = log.store.names(log_name)[-1]
    assert newest == f"{there + 1:08d}.json"
    with pytest.raises(
        ConfigError, match="has format 2, this evertrain reads up to 1: use the ver"
    ):
        read_document(log.store, kind, f"{log_name}/{newest}", "a document", has_checksum=True)
    # That is no damage to this one.
    log.read().check_whole()
    assert len(log.read().versions) == there + 1
