"""The logs of versions and champions: one winner for each number, and no altered document."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.storage.champions import MODEL, entry, version
from tests.storage.doubles.faulty_store import FaultyStore
from tests.storage.samples import damaged
from train_core.errors import CheckpointError, ConfigError, StorageError
from train_core.policy.champion.model_names import ModelAddress
from train_core.storage.records.documents import with_checksum
from train_core.storage.registered_models.model_registry import ModelRegistry, registered_models

RACERS = 8
CHECKPOINT = "step-00000001-a0001"
VERSION_1 = "versions/00000001.json"
CHAMPION_1 = "champions/00000001.json"


@pytest.fixture
def registry(storage_url: str) -> ModelRegistry:
    return ModelRegistry(storage_url, MODEL)


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
def test_versions_that_are_claimed_at_once_are_all_different_and_complete(
    storage_url: str,
) -> None:
    def claim(run: int) -> Any:
        return ModelRegistry(storage_url, MODEL).add_version(f"run-{run}", CHECKPOINT, f"{run}")

    made = at_once([partial(claim, run) for run in range(RACERS)])
    assert sorted(one.version for one in made) == list(range(1, RACERS + 1))
    found = ModelRegistry(storage_url, MODEL).versions()
    assert [one.version for one in found] == list(range(1, RACERS + 1))
    assert sorted(found, key=lambda one: one.run) == made
    assert {one.checkpoint_digest for one in found} == {f"{run}" for run in range(RACERS)}


def test_a_checkpoint_is_one_version_however_often_it_is_registered(
    registry: ModelRegistry,
) -> None:
    first = registry.add_version("a", CHECKPOINT, "1")
    second = registry.add_version("a", "step-00000002-a0001", "2")
    other = registry.add_version("b", CHECKPOINT, "1")
    assert [first.version, second.version, other.version] == [1, 2, 3]
    assert registry.add_version("a", CHECKPOINT, "1") == first
    assert registry.versions() == [first, second, other]


@pytest.mark.promise("one-champion")
def test_of_many_that_promote_at_once_one_is_champion(storage_url: str) -> None:
    entries = [
        entry(1, version(number), decided_by=f"run-{number}/decisions/x")
        for number in range(1, RACERS + 1)
    ]

    def promote(number: int) -> Any:
        return ModelRegistry(storage_url, MODEL).add_champion(entries[number])

    results = at_once([partial(promote, number) for number in range(RACERS)])
    won = [one for one in results if not isinstance(one, FileExistsError)]
    assert len(won) == 1
    assert ModelRegistry(storage_url, MODEL).champions() == won
    assert won[0] in entries


def test_the_same_decision_again_gives_the_entry_that_it_made(registry: ModelRegistry) -> None:
    made = registry.add_champion(entry(1))
    later = entry(1, created_at="2027-01-01T00:00:00+00:00")
    assert registry.add_champion(later) == made == registry.champion()
    with pytest.raises(FileExistsError):
        registry.add_champion(entry(1, decided_by="other/decisions/Digits/v1"))
    with pytest.raises(FileExistsError):
        registry.add_champion(entry(1, version(2)))
    assert registry.champions() == [made]


def test_the_newest_entry_is_the_champion(registry: ModelRegistry) -> None:
    assert registry.champion() is None
    assert registry.champions() == []
    made = [registry.add_champion(entry(number, version(number))) for number in (1, 2, 3)]
    assert registry.champions() == made
    assert registry.champion() == made[-1]
    assert registry.entry(2) == made[1]
    assert registry.entry(4) is None


@pytest.mark.promise("address-of-a-model")
def test_an_address_means_a_version(registry: ModelRegistry) -> None:
    made = [registry.add_version(run, CHECKPOINT, run) for run in "abc"]
    registry.add_champion(entry(1, made[1]))

    def resolved(text: str) -> Any:
        address = ModelAddress.parse(text)
        assert address
        return registry.resolve(address)

    assert resolved(f"models:/{MODEL}@champion") == made[1]
    assert resolved(f"models:/{MODEL}@challenger") == made[2]
    assert resolved(f"models:/{MODEL}/1") == made[0]
    with pytest.raises(ConfigError, match=r"has no version 7: 1, 2, 3"):
        resolved(f"models:/{MODEL}/7")
    with pytest.raises(ConfigError, match="has no alias 'newest': there are champion and chall"):
        resolved(f"models:/{MODEL}@newest")


@pytest.mark.parametrize("alias", ["champion", "challenger"])
def test_a_model_without_versions_has_no_alias(registry: ModelRegistry, alias: str) -> None:
    with pytest.raises(ConfigError, match=f"model '{MODEL}' in .* has no "):
        registry.resolve(ModelAddress(MODEL, None, alias))


@pytest.mark.promise("altered-decisions")
@pytest.mark.parametrize(
    ("source", "target"),
    [
        (VERSION_1, "versions/00000002.json"),
        (CHAMPION_1, "champions/00000002.json"),
        (f"../Other/{VERSION_1}", "versions/00000002.json"),
        (f"../Other/{CHAMPION_1}", "champions/00000002.json"),
    ],
)
def test_a_document_under_another_number_or_model_is_refused(
    registry: ModelRegistry, storage_url: str, source: str, target: str
) -> None:
    for model in (MODEL, "Other"):
        its = ModelRegistry(storage_url, model)
        its.add_champion(entry(1, its.add_version("run", CHECKPOINT, "1")))
    *_, number = source.partition("../Other/")
    place = ModelRegistry(storage_url, "Other") if "Other" in source else registry
    registry.store.write(target, place.store.read(number or source))
    read = registry.versions if target.startswith("versions") else registry.champion
    with pytest.raises(CheckpointError, match="it was renamed"):
        read()


@pytest.mark.promise("altered-decisions")
@given(st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_an_altered_document_is_refused(tmp_path: Path, data: st.DataObject) -> None:
    registry = ModelRegistry(str(tmp_path), MODEL)
    registry.add_champion(entry(1, registry.add_version("run", CHECKPOINT, "1")))
    key, read = data.draw(
        st.sampled_from([(VERSION_1, registry.versions), (CHAMPION_1, registry.champion)])
    )
    whole = registry.store.read(key)
    registry.store.write(key, data.draw(damaged(whole)))
    try:
        with pytest.raises(CheckpointError, match=key):
            read()
    finally:
        registry.store.write(key, whole)


@pytest.mark.promise("altered-decisions")
def test_a_document_of_a_newer_evertrain_is_no_damage(registry: ModelRegistry) -> None:
    newer = version(1).model_copy(update={"format": 2})
    registry.store.create(VERSION_1, with_checksum(newer))
    with pytest.raises(ConfigError, match="has format 2, this evertrain reads up to 1"):
        registry.versions()


def test_what_is_no_document_is_left_alone(registry: ModelRegistry) -> None:
    made = registry.add_version("run", CHECKPOINT, "1")
    for name in ("note.txt", "2.json", "00000002.json.tmp", "00000000.json"):
        registry.store.write(f"versions/{name}", b"somebody's own")
    assert registry.versions() == [made]
    assert registry.add_version("other", CHECKPOINT, "2").version == 2


def test_the_models_of_a_storage_are_listed(storage_url: str) -> None:
    assert registered_models(storage_url) == []
    for model in ("B", "a"):
        ModelRegistry(storage_url, model).add_version("run", CHECKPOINT, "1")
    assert registered_models(storage_url) == ["B", "a"]


@pytest.mark.parametrize("done", [False, True], ids=["refused", "lost answer"])
def test_a_version_or_a_champion_that_failed_is_made_once_by_the_next_try(
    tmp_path: Path, done: bool
) -> None:
    registry = ModelRegistry(str(tmp_path / "storage"), MODEL)
    store = FaultyStore(registry.store.url, tmp_path / "notes")
    registry.store = store
    for act in (
        lambda: registry.add_version("run", CHECKPOINT, "1"),
        lambda: registry.add_champion(entry(1)),
    ):
        store.fail_at(1 + store.operations.count("create"), kind="create", done=done)
        with pytest.raises(StorageError, match="the test has scheduled this"):
            act()
        act()
    assert [one.version for one in registry.versions()] == [1]
    assert [one.number for one in registry.champions()] == [1]
