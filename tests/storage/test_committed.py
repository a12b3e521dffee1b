"""What lies among the checkpoints is found by one listing, and each thing is told by itself."""

from __future__ import annotations

import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pydantic import RootModel

from tests.storage.doubles.faulty_store import FaultyStore
from tests.storage.samples import commit, manifest, record, save
from train_core import verify_run
from train_core.errors import CheckpointError, ConfigError
from train_core.policy.checkpoints.retention import RetentionRules
from train_core.storage.cleanup.orphans import find_orphans
from train_core.storage.committed import scan
from train_core.storage.coordination import lease
from train_core.storage.coordination.fence_list import Fence, read_fence_list, write_fence_list
from train_core.storage.coordination.holder import Holder
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import LARGEST_NUMBER, with_checksum
from train_core.storage.records.manifest import PredictionsManifest
from train_core.storage.records.names import CheckpointName, LeaseName
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt, create_run, quarantine

RULES = RetentionRules(monitor="validation/accuracy", monitor_order="max", keep_last=1, keep_best=1)


class Anything(RootModel[dict[str, Any]]):
    pass


@pytest.fixture
def folder(storage_url: str) -> RunFolder:
    folder = RunFolder(storage_url, "run")
    create_run(folder, record())
    return folder


def commit_newer(folder: RunFolder, step: int) -> CheckpointName:
    """What a newer evertrain commits."""
    name = CheckpointName(step, 1)
    content = manifest(step, 1).model_dump(mode="json", by_alias=True) | {"format": 2, "more": 1}
    folder.store.create(f"checkpoints/{name}/manifest.json", with_checksum(Anything(content)))
    return name


def test_each_folder_is_in_one_list(folder: RunFolder) -> None:
    good, bad, damaged = (commit(folder, step, 1) for step in (1, 2, 3))
    quarantine(folder, bad, "a test")
    folder.store.write(f"checkpoints/{damaged}/manifest.json", b"{}")
    newer, uncommitted = commit_newer(folder, 4), save(folder, 5, 1)
    found = folder.scan()
    assert [one.name for one in found.good] == [good]
    assert (found.quarantined, found.uncommitted, found.late) == ([bad], [uncommitted], [])
    assert list(found.damaged) == [damaged]
    assert "has format 2" in found.newer[newer]
    write_fence_list(folder.store, 2, [])
    folder.store.write("lease/0002.json", Holder.here().model_dump_json().encode())
    found = folder.scan()
    assert found.late == [good, damaged, newer]
    assert (found.good, found.damaged, found.newer) == ([], {}, {})
    assert [one.name for one in scan(folder.store, uncommitted).good] == []


@pytest.mark.promise("newer-format")
def test_what_a_newer_evertrain_committed_stays_and_is_no_checkpoint_to_go_on_from(
    folder: RunFolder,
) -> None:
    folder.store.write("journal/steps-00000001-00000001-a0001.jsonl", b"{}\n")
    folder.store.write("journal/steps-00000002-00000009-a0001.jsonl", b"only the newer one's\n")
    commit(folder, 1, 1)
    newer = commit_newer(folder, 2)
    for act in (folder.checkpoints, folder.newest, lambda: begin_attempt(folder)):
        with pytest.raises(ConfigError, match="has format 2"):
            act()
    assert folder.quarantined() == {}
    assert f"checkpoints/{newer}" not in [one.key for one in find_orphans(folder, 9)]
    assert not [one for one in find_orphans(folder, 9) if one.key.startswith("journal/")]


def test_a_checkpoint_costs_one_read_of_its_manifest(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path / "storage"), "run")
    for step in range(1, 21):
        commit(folder, step, 1)
    folder.store = FaultyStore(folder.url, tmp_path / "notes")
    assert len(folder.scan().good) == 20
    counted = Counter(folder.store.everything)
    assert counted == {"read": 20, "in_folders": 1, "names": 1}


@pytest.mark.promise("untrusted-files")
@pytest.mark.timeout(20)
@pytest.mark.parametrize("attempt", [10**6, LARGEST_NUMBER])
def test_leases_are_found_and_not_counted(tmp_path: Path, attempt: int) -> None:
    folder = RunFolder(str(tmp_path), "run")
    create_run(folder, record())
    good = commit(folder, 1, 1)
    dead = Holder.here().model_copy(update={"pid": 2**31 - 1})
    folder.store.write(f"lease/{LeaseName(attempt)}", dead.model_dump_json().encode())
    write_fence_list(folder.store, 1, [])
    begun = time.monotonic()
    assert read_fence_list(folder.store) == Fence(1)
    assert [one.name for one in folder.checkpoints()] == [good]
    assert lease.newest_attempt(folder.store) == attempt
    assert [one.key for one in find_orphans(folder, attempt + 1)] == []
    if attempt < LARGEST_NUMBER:
        held = begin_attempt(folder)
        assert held.attempt == attempt + 1
        held.release()
    else:
        with pytest.raises(CheckpointError, match=r"no run has so many attempts. Delete it"):
            begin_attempt(folder)
    assert time.monotonic() - begun < 2


def test_a_name_with_a_longer_number_is_no_name(folder: RunFolder) -> None:
    assert CheckpointName.parse("step-" + "1" * 5000 + "-a0001") is None
    assert LeaseName.parse("1" * 5000 + ".json") is None


@pytest.mark.promise("untrusted-files")
@pytest.mark.timeout(20)
def test_links_that_lead_nowhere_are_passed_over(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    good = commit(folder, 1, 1)
    checkpoints = Path(folder.url, "checkpoints")
    os.symlink("step-00000002-a0001", checkpoints / "step-00000002-a0001")
    os.symlink(tmp_path / "nowhere", checkpoints / "step-00000003-a0001")
    assert [one.name for one in folder.checkpoints()] == [good]


def test_a_manifest_that_is_a_folder_or_a_pipe_is_damage(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    for step, make in ((1, os.mkdir), (2, os.mkfifo)):
        path = Path(folder.url, "checkpoints", str(save(folder, step, 1)), "manifest.json")
        make(path)
    told = [reason.rpartition("/")[2] for reason in folder.damaged().values()]
    assert told == [
        "manifest.json is a folder and no file",
        "manifest.json is a pipe and no file; evertrain makes none",
    ]


def predictions(checkpoint: str) -> PredictionsManifest:
    return PredictionsManifest(
        created_at="2026-01-01T00:00:00Z",
        files=(),
        checkpoint=checkpoint,
        checkpoint_digest="0" * 64,
        step=1,
        input={},
        num_rows=0,
        rows=(),
    )


def test_a_result_in_the_folder_of_another_is_left_out(
    folder: RunFolder, caplog: pytest.LogCaptureFixture
) -> None:
    written = predictions("step-00000001-a0001")
    writer = RunWriter(folder, 1)
    for name in ("step-00000001-a0001-aaaaaaaa", "step-00000002-a0001-bbbbbbbb"):
        writer.commit_result(f"predictions/{name}", written)
    found = dict(folder.results("predictions", PredictionsManifest))
    assert list(found) == ["predictions/step-00000001-a0001-aaaaaaaa"]
    assert "is a result of step-00000001-a0001: the folder was copied" in caplog.text


@pytest.mark.promise("plain-predictions")
def test_predictions_of_an_earlier_version_are_read_by_the_name_of_that_time(
    folder: RunFolder,
) -> None:
    key = "predictions/step-00000001-a0001-aaaaaaaa"
    RunWriter(folder, 1).commit_result(key, predictions("step-00000001-a0001"))
    assert folder.store.names(key) == ["_manifest.json"]
    folder.store.write(f"{key}/manifest.json", folder.store.read(f"{key}/_manifest.json"))
    folder.store.delete(f"{key}/_manifest.json")
    ((found, manifest),) = folder.results("predictions", PredictionsManifest)
    assert (found, manifest.checkpoint) == (key, "step-00000001-a0001")
    assert not [one for one in verify_run(folder) if one.faults]


def test_ten_thousand_orphans_are_found_soon(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    store = Store(folder.url)
    begun = time.process_time()
    for number in range(1, 10_001):
        os.makedirs(store.path(f"checkpoints/{CheckpointName(number, number)}"))
    made_s = time.process_time() - begun
    begin_attempt(folder).release()
    begun = time.process_time()
    assert len(find_orphans(folder, 10_001)) == 10_000
    # Each is looked at once, and not once for each other one.
    assert time.process_time() - begun < 20 * made_s
