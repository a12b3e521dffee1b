"""Models of before the log are read as its beginning, continued, and never rewritten."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.champion.samples import (
    MODEL,
    add_events,
    approval,
    decision,
    earlier_key,
    entry,
    version,
    write_earlier,
)
from tests.champion.test_log import TornStore
from tests.storage.samples import damaged
from train_core.champion.earlier import read_earlier
from train_core.champion.history import ModelHistory
from train_core.champion.log import ModelLog
from train_core.champion.records import Record
from train_core.errors import CheckpointError, ConfigError
from train_core.policy.champion.gate_decision import Outcome
from train_core.policy.champion.model_state import NextStep
from train_core.results import Decision
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import with_checksum

FIRST, SECOND = version(1, "first"), version(2, "second")
DECIDED = decision(FIRST)
PROMOTED = entry(1, FIRST, decided_by=earlier_key(DECIDED))
ASKED = decision(SECOND, champion=1, outcome=Outcome.ASK).model_copy(update={"champion": FIRST})
REJECTED = approval(ASKED, is_approved=False)
WRITTEN: tuple[Record, ...] = (FIRST, DECIDED, PROMOTED, SECOND, ASKED, REJECTED)


@pytest.fixture
def storage(storage_url: str) -> str:
    write_earlier(storage_url, *WRITTEN)
    return storage_url


def read(storage: str) -> ModelHistory:
    return ModelLog(storage, MODEL).read()


@pytest.mark.promise("earlier-versions")
def test_all_kinds_of_documents_are_events_rejections_last(storage: str) -> None:
    history = read(storage)
    history.check_whole()
    found = tuple(one.record for one in history.found)
    assert found == (FIRST, SECOND, DECIDED, ASKED, PROMOTED, REJECTED)
    assert [Store(storage).uri(one.key) for one in history.found] == [
        one.uri for one in history.found
    ]
    result = history.result(DECIDED)
    assert (result.entry, result.decision_uri) == (
        PROMOTED,
        Store(storage).uri(earlier_key(DECIDED)),
    )
    assert history.what_follows(2)[0] is NextStep.REJECTED


@pytest.mark.promise("earlier-versions")
def test_a_model_goes_on_in_its_log_and_nothing_of_before_is_rewritten(storage: str) -> None:
    keys = [earlier_key(one) for one in WRITTEN]
    before = {key: Store(storage).read(key) for key in keys}
    log = ModelLog(storage, MODEL)
    third, number = log.register("third", "step-00000001-a0001", "3")
    assert (third.version, number) == (3, 1)
    add_events(storage, decision(third, champion=1), entry(2, third))
    history = read(storage)
    assert [one.version.run for one in history.entries] == ["first", "third"]
    assert history.state.champion_before() == 1
    assert history.what_follows(2)[0] is NextStep.REJECTED
    assert {key: Store(storage).read(key) for key in keys} == before


@pytest.mark.promise("earlier-versions")
def test_a_look_closes_nothing(storage: str) -> None:
    read(storage)
    ModelLog(storage, MODEL).record(lambda _: None)
    names = Store(storage).child(f"_models/{MODEL}").names("versions")
    assert names == ["00000001.json", "00000002.json"]


@pytest.mark.promise("earlier-versions")
def test_what_an_evertrain_of_before_had_begun_is_read_and_no_entry_falls_by_it(
    storage: str,
) -> None:
    third, _ = ModelLog(storage, MODEL).register("third", "step-00000001-a0001", "3")
    # It numbers a version after the closing one, and answers what it had read before.
    write_earlier(storage, version(4, "late"))
    asked = decision(FIRST, champion=1, outcome=Outcome.ASK)
    write_earlier(storage, asked, approval(asked, is_approved=False))
    history = read(storage)
    history.check_whole()
    assert list(history.versions.values()) == [FIRST, SECOND, third]
    assert [one.version for one in history.entries] == [FIRST]
    add_events(storage, entry(2, third))
    assert read(storage).what_follows(1)[0] is NextStep.REJECTED


@pytest.mark.promise("earlier-versions")
def test_who_closes_what_somebody_adds_to_meanwhile_reads_that_first(storage: str) -> None:
    seen: list[int] = []

    def judge(history: ModelHistory) -> Record:
        seen.append(len(history.versions))
        if len(seen) == 1:
            write_earlier(storage, version(3, "meanwhile"))
        return version(len(history.versions) + 1, "new")

    history = ModelLog(storage, MODEL).record(judge)
    assert seen[-1] == 3
    assert [one.run for one in history.versions.values()] == [
        "first",
        "second",
        "meanwhile",
        "new",
    ]


@pytest.mark.promise("earlier-versions")
def test_a_replaced_champion_whose_run_was_deleted_has_its_entry(storage: str) -> None:
    Store(storage).delete("first")
    history = read(storage)
    history.check_whole()
    assert history.entries == [PROMOTED]
    assert history.newest_result(1) is None


def test_a_document_that_a_listing_lacks_is_read_if_a_newer_one_is_listed(storage: str) -> None:
    """As where an older evertrain adds one, and a newer one closes the log, while it is listed."""
    write_earlier(storage, entry(2, SECOND))
    whole = read(storage).found
    ModelLog(storage, MODEL).register("third", "step-00000001-a0001", "3")
    store = TornStore(storage)
    store.hidden = "00000002.json"
    assert tuple(read_earlier(store, MODEL).found) == whole
    assert read_earlier(store, MODEL).to_close == []


@pytest.mark.promise("altered-decisions")
@given(data=st.data())
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
def test_an_altered_document_is_refused_and_hides_no_other(
    tmp_path: Path, data: st.DataObject
) -> None:
    store = Store(str(tmp_path))
    if not store.exists(earlier_key(FIRST)):
        write_earlier(store.url, *WRITTEN)
    of = data.draw(st.sampled_from(WRITTEN))
    key = earlier_key(of)
    whole = store.read(key)
    store.write(key, data.draw(damaged(whole)))
    try:
        history = read(store.url)
        with pytest.raises(CheckpointError, match=key):
            history.check_whole()
        # Of a version that cannot be read nobody knows the run.
        hidden: list[Record] = []
        for what, below in ((FIRST, [DECIDED]), (SECOND, [ASKED, REJECTED]), (ASKED, [REJECTED])):
            hidden += below if of == what else []
        readable = [one.record for one in history.found]
        assert [one for one in WRITTEN if one not in (of, *hidden) and one not in readable] == []
    finally:
        store.write(key, whole)


@pytest.mark.promise("altered-decisions")
@pytest.mark.parametrize(
    ("source", "target"),
    [(FIRST, SECOND), (PROMOTED, entry(2)), (version(1, model="Other"), SECOND)],
)
def test_a_document_under_another_number_or_model_is_refused(
    storage_url: str, source: Record, target: Record
) -> None:
    write_earlier(storage_url, source)
    store = Store(storage_url)
    store.create(earlier_key(target), store.read(earlier_key(source)))
    with pytest.raises(CheckpointError, match="it was renamed"):
        read(storage_url).check_whole()


@pytest.mark.promise("altered-decisions")
def test_a_decision_under_the_name_of_another_is_refused(storage: str) -> None:
    store = Store(storage)
    store.create(earlier_key(decision(FIRST, champion=1)), store.read(earlier_key(DECIDED)))
    with pytest.raises(CheckpointError, match=r"is that of Digits/v00000001-c00000000\.json"):
        read(storage).check_whole()


@pytest.mark.promise("altered-decisions")
def test_an_answer_to_another_decision_is_refused(storage: str) -> None:
    store, later = Store(storage), decision(SECOND, champion=2, outcome=Outcome.ASK)
    write_earlier(storage, later)
    store.create(earlier_key(approval(later)), store.read(earlier_key(REJECTED)))
    with pytest.raises(CheckpointError, match="is the answer to another decision"):
        read(storage).check_whole()


@pytest.mark.promise("altered-decisions")
@pytest.mark.parametrize("of", [version(3, "third"), decision(FIRST, champion=1), entry(2, FIRST)])
def test_a_document_of_a_newer_evertrain_is_no_damage(storage: str, of: Record) -> None:
    newer = of.model_copy(update={"format": 2})
    Store(storage).create(earlier_key(of), with_checksum(newer))
    with pytest.raises(ConfigError, match="has format 2, this evertrain reads up to 1"):
        read(storage).check_whole()


@pytest.mark.promise("altered-decisions")
def test_a_decision_on_another_checkpoint_is_not_carried_out(storage_url: str) -> None:
    """As where somebody has deleted the model, and the run registers its next checkpoint."""
    again = FIRST.model_copy(update={"created_at": "2026-02-02T00:00:00+00:00"})
    write_earlier(storage_url, again, DECIDED)
    assert read(storage_url).what_follows(1)[0] is NextStep.PROMOTE
    other = again.model_copy(update={"checkpoint_digest": "f" * 64})
    Store(storage_url).write(earlier_key(other), with_checksum(other))
    with pytest.raises(CheckpointError, match="is on another checkpoint than the one that is"):
        read(storage_url).check_whole()


def test_what_is_no_document_is_left_alone(storage: str) -> None:
    for name in ("note.txt", "2.json", "00000002.json.tmp", "00000000.json"):
        Store(storage).write(f"_models/{MODEL}/versions/{name}", b"somebody's own")
    read(storage).check_whole()
    assert not [one for one in read(storage).found if not isinstance(one.record, Record | Decision)]
