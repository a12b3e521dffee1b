from __future__ import annotations

from functools import partial
from itertools import starmap
from pathlib import Path

import pytest

from tests.storage.samples import commit, manifest, record, save
from train_core.errors import CheckpointError, ConfigError, RunBusyError
from train_core.storage.addresses import named
from train_core.storage.coordination import lease
from train_core.storage.fork import fork_checkpoint
from train_core.storage.objects.store import Store
from train_core.storage.records.amendments import Amendment
from train_core.storage.records.names import CheckpointName
from train_core.storage.run_checks import check_flow_run, check_leftovers
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt, create_run, quarantine
from train_core.storage.verification.checkpoints import faults


@pytest.fixture
def folder(storage_url: str) -> RunFolder:
    return RunFolder(storage_url, "run")


def names(folder: RunFolder) -> list[CheckpointName]:
    return [checkpoint.name for checkpoint in folder.checkpoints()]


def test_a_run_is_created_once_and_read_back(folder: RunFolder) -> None:
    assert not folder.exists()
    with pytest.raises(FileNotFoundError):
        folder.record()
    create_run(folder, record(seed=1))
    assert folder.exists()
    assert folder.record() == record(seed=1)
    with pytest.raises(FileExistsError):
        create_run(folder, record(seed=2))
    assert RunFolder.at(folder.url).record() == record(seed=1)


@pytest.mark.parametrize("url", ["run", "/run", "s3://bucket", ""])
def test_what_is_no_address_of_a_run_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="is not the address of a run"):
        RunFolder.at(url)


def test_a_damaged_record_is_named(folder: RunFolder) -> None:
    folder.store.write("run.json", b'{"format": 1')
    with pytest.raises(CheckpointError, match=r"run\.json: not the record of a run"):
        folder.record()


@pytest.mark.promise("flow-run-names")
def test_a_run_is_not_continued_by_another_flow_run_that_gets_its_name(folder: RunFolder) -> None:
    create_run(folder, record().model_copy(update={"flow_run": "one"}))
    check_flow_run(folder, "one")
    # Whoever names it means it.
    check_flow_run(folder, "")
    with pytest.raises(ConfigError, match="was begun by flow run one, and flow run another would"):
        check_flow_run(folder, "another")


def test_a_run_that_somebody_named_is_not_continued_by_a_flow_run_that_gets_its_name(
    folder: RunFolder,
) -> None:
    create_run(folder, record())
    with pytest.raises(ConfigError, match=r"was not begun by a flow run.*the parameter `run`"):
        check_flow_run(folder, "one")


@pytest.mark.promise("commit-last")
def test_a_checkpoint_without_its_manifest_does_not_exist(folder: RunFolder) -> None:
    name = save(folder, step=1, attempt=1)
    assert folder.checkpoints() == []
    with pytest.raises(FileNotFoundError):
        folder.checkpoint(name)


def test_checkpoints_are_listed_oldest_first_by_their_numbers(folder: RunFolder) -> None:
    steps = [10, 9, 123_456_789, 2]
    for step in steps:
        commit(folder, step, attempt=1)
    assert [name.step for name in names(folder)] == sorted(steps)


def test_a_committed_checkpoint_has_its_manifest(folder: RunFolder) -> None:
    name = commit(folder, step=3, attempt=1)
    [found] = folder.checkpoints()
    assert found == folder.checkpoint(name)
    assert found.manifest == manifest(3, 1)
    assert found.key == "checkpoints/step-00000003-a0001"


@pytest.mark.promise("commit-last")
def test_a_checkpoint_is_committed_once(folder: RunFolder) -> None:
    name = commit(folder, step=3, attempt=1)
    with pytest.raises(FileExistsError):
        RunWriter(folder, 1).commit(manifest(3, 1).model_copy(update={"epoch": 9}))
    assert folder.checkpoint(name).manifest == manifest(3, 1)


def test_other_things_among_the_checkpoints_are_passed_over(folder: RunFolder) -> None:
    name = commit(folder, step=3, attempt=1)
    for stray in ("notes.txt", "step-3-a1/manifest.json", "step-00000004-a0001.bak/manifest.json"):
        folder.store.write(f"checkpoints/{stray}", b"stray")
    assert names(folder) == [name]


def test_a_quarantined_checkpoint_is_kept_and_left_out(folder: RunFolder) -> None:
    good, bad = commit(folder, 1, 1), commit(folder, 2, 1)
    quarantine(folder, bad, "model.safetensors: another digest")
    quarantine(folder, bad, "a second reason")
    assert names(folder) == [good]
    assert folder.quarantined() == {str(bad): "model.safetensors: another digest"}
    assert "model.safetensors" in folder.store.names(f"checkpoints/{bad}")


def test_a_damaged_manifest_is_left_out_and_quarantined_by_the_next_attempt(
    folder: RunFolder,
) -> None:
    good, bad = commit(folder, 1, 1), commit(folder, 2, 1)
    folder.store.write(f"checkpoints/{bad}/manifest.json", manifest(2, 1).to_json()[:-10])
    assert names(folder) == [good]
    assert folder.quarantined() == {}
    begin_attempt(folder).release()
    assert names(folder) == [good]
    assert "not a manifest" in folder.quarantined()[str(bad)]


@pytest.mark.promise("verified")
@pytest.mark.parametrize("alias", [*starmap(CheckpointName, [(9, 1), (2, 1), (7, 2), (9, 3)])])
@pytest.mark.parametrize("is_renamed", [False, True], ids=["copied", "renamed"])
def test_a_checkpoint_under_the_name_of_another_is_refused_and_quarantined(
    folder: RunFolder, alias: CheckpointName, *, is_renamed: bool
) -> None:
    good, own = commit(folder, 5, 1), commit(folder, 7, 1)
    for file in ("model.safetensors", "manifest.json"):
        folder.store.copy(f"checkpoints/{own}/{file}", folder.store, f"checkpoints/{alias}/{file}")
    if is_renamed:
        folder.store.delete(f"checkpoints/{own}")
    left = [good] if is_renamed else [good, own]
    with pytest.raises(CheckpointError, match=f"{alias} has the manifest of {own}: .*delete"):
        folder.checkpoint(alias)
    with pytest.raises(CheckpointError, match=f"{alias} has the manifest of {own}"):
        folder.find(str(alias))
    assert names(folder) == left
    assert list(folder.damaged()) == [str(alias)]
    begin_attempt(folder).release()
    assert names(folder) == left
    assert f"has the manifest of {own}" in folder.quarantined()[str(alias)]


def test_a_checkpoint_has_its_step_attempt_and_name_from_its_manifest(folder: RunFolder) -> None:
    name = commit(folder, step=3, attempt=2)
    [found] = folder.checkpoints()
    assert (found.step, found.attempt, found.name) == (3, 2, name)


def test_a_deleted_checkpoint_is_gone_and_its_neighbours_stay(folder: RunFolder) -> None:
    kept, gone = commit(folder, 1, 1), commit(folder, 1, 2)
    RunWriter(folder, 2).delete_checkpoint(gone)
    assert names(folder) == [kept]
    assert folder.store.names("checkpoints") == [str(kept)]
    RunWriter(folder, 2).delete_checkpoint(gone)


class StopsAfterOneDelete(Store):
    """A store whose process ends after its first delete."""

    deleted: list[str]

    def delete(self, key: str) -> None:
        if self.deleted:
            raise ConnectionAbortedError(f"the process ended before it deleted {key}")
        super().delete(key)
        self.deleted.append(key)


def test_a_half_deleted_checkpoint_does_not_exist(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    name = commit(folder, 1, 1)
    whole = folder.store
    folder.store = StopsAfterOneDelete(folder.url)
    folder.store.deleted = []
    with pytest.raises(ConnectionAbortedError):
        RunWriter(folder, 1).delete_checkpoint(name)
    folder.store = whole
    assert folder.checkpoints() == []
    assert whole.names(f"checkpoints/{name}") == ["model.safetensors"]


def test_a_run_without_outcome_has_none(folder: RunFolder) -> None:
    assert folder.report() is None
    assert folder.live() is None
    folder.store.write("report.json", b'{"run": "run"}')
    assert folder.report() == {"run": "run"}


@pytest.mark.promise("verified")
def test_every_byte_of_a_checkpoint_and_its_journal_is_verified(folder: RunFolder) -> None:
    name = commit(folder, 1, 1)
    segment = "journal/steps-00000001-00000001-a0001.jsonl"
    folder.store.write(segment, b"{}\n")
    checkpoint = folder.checkpoint(name)
    assert faults(folder, checkpoint) == []
    model = f"{checkpoint.key}/model.safetensors"
    for key in (model, segment):
        whole = folder.store.read(key)
        for damaged, told in (
            (bytes([whole[0] ^ 1]) + whole[1:], f"{key}: its digest is another"),
            (whole[:-1], f"{key} has {len(whole) - 1} bytes, {len(whole)} were committed"),
        ):
            folder.store.write(key, damaged)
            assert faults(folder, checkpoint) == [told]
        folder.store.delete(key)
        assert faults(folder, checkpoint) == [f"{key} is missing"]
        folder.store.write(key, whole)
    assert faults(folder, checkpoint) == []


def test_a_fork_takes_and_deletes_nothing_that_lies_there(folder: RunFolder) -> None:
    create_run(folder, record())
    first, second = commit(folder, 1, 1), commit(folder, 2, 1)
    for segment in folder.checkpoint(first).manifest.journal:
        folder.store.write(f"journal/{segment.name}", b"{}\n")
    # As if a fork at step 2 had been killed before its run.json.
    elsewhere = RunFolder(folder.storage, "fork")
    for file in ("model.safetensors", "manifest.json"):
        key = f"checkpoints/{second}/{file}"
        folder.store.copy(key, elsewhere.store, key)
    fork = partial(fork_checkpoint, folder, folder.checkpoint(first))
    for act in (partial(check_leftovers, elsewhere), partial(fork, "fork")):
        with pytest.raises(ConfigError, match=r"has checkpoints and no run\.json"):
            act()
    assert names(elsewhere) == [second]
    assert names(fork("other")) == [first]


@pytest.mark.promise("resume-as-asked")
def test_what_was_asked_last_counts_and_a_fork_is_asked_for_the_same(folder: RunFolder) -> None:
    create_run(folder, record(epochs=1))
    begun = folder.newest_request()
    assert begun == Amendment(config=folder.record().config, pipeline=folder.record().pipeline)
    longer, smaller = (
        begun.model_copy(update={"config": begun.config.model_copy(update=changes)})
        for changes in ({"epochs": 5}, {"epochs": 5, "num_workers": 2})
    )
    for attempt, asked in ((1, begun), (2, longer), (3, longer), (11, smaller)):
        RunWriter(folder, attempt).amend(asked)
        assert folder.newest_request() == asked
    # Only what is another than before is written down.
    assert folder.store.names("asked") == ["0002.json", "0011.json"]
    first = commit(folder, 1, 1)
    for segment in folder.checkpoint(first).manifest.journal:
        folder.store.write(f"journal/{segment.name}", b"{}\n")
    assert fork_checkpoint(folder, folder.checkpoint(first), "fork").newest_request() == smaller


def test_of_two_that_fork_to_one_name_one_is_refused(folder: RunFolder) -> None:
    create_run(folder, record())
    first = commit(folder, 1, 1)
    for segment in folder.checkpoint(first).manifest.journal:
        folder.store.write(f"journal/{segment.name}", b"{}\n")
    elsewhere = RunFolder(folder.storage, "fork")
    held = lease.acquire(elsewhere.store, "fork")
    with pytest.raises(RunBusyError):
        fork_checkpoint(folder, folder.checkpoint(first), "fork")
    assert names(elsewhere) == []
    held.release()
    assert names(fork_checkpoint(folder, folder.checkpoint(first), "fork")) == [first]


def test_what_is_not_good_is_not_found_by_its_name(folder: RunFolder) -> None:
    create_run(folder, record())
    good, bad, altered = (commit(folder, step, 1) for step in (1, 2, 3))
    quarantine(folder, bad, "a flipped bit")
    folder.store.write(f"checkpoints/{altered}/manifest.json", b"{}")
    assert named(folder, good).name == good
    with pytest.raises(ConfigError, match="good: a flipped bit"):
        named(folder, bad)
    with pytest.raises(ConfigError, match=r"good: .*not a manifest"):
        named(folder, altered)
    with pytest.raises(ConfigError, match="no checkpoint step-00000009-a0001: see"):
        named(folder, CheckpointName(9, 1))
