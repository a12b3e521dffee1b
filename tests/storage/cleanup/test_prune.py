from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.storage.samples import commit, manifest, save
from train_core.policy.checkpoints.retention import RetentionRules
from train_core.storage.cleanup.prune import Pruning
from train_core.storage.coordination.pins import pinned
from train_core.storage.objects.store import Store
from train_core.storage.records.names import CheckpointName
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt, quarantine
from train_core.storage.verification.checkpoints import faults

NOW = datetime(2026, 1, 2, tzinfo=UTC)
RULES = RetentionRules(monitor="validation/accuracy", monitor_order="max", keep_last=1, keep_best=1)
SEGMENT = "journal/steps-00000001-00000001-a0001.jsonl"


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return begun(RunFolder(str(tmp_path), "run"))


@pytest.fixture
def any_folder(storage_url: str) -> RunFolder:
    """On a disk, then on S3: for what depends on the storage."""
    return begun(RunFolder(storage_url, "run"))


def begun(folder: RunFolder) -> RunFolder:
    """Four checkpoints, the third half deleted, by an attempt that is over; the first is best."""
    begin_attempt(folder).release()
    folder.store.write(SEGMENT, b"{}\n")
    save(folder, 1, 1)
    changed = {"metrics": {"validation/accuracy": 0.9}}
    RunWriter(folder, 1).commit(manifest(1, 1).model_copy(update=changed))
    commit(folder, 2, 1)
    save(folder, 3, 1)
    commit(folder, 4, 1)
    return folder


def pruning(folder: RunFolder) -> Pruning:
    return Pruning(folder, RULES, NOW, tuple)


def steps(folder: RunFolder) -> list[int]:
    return [one.name.step for one in folder.checkpoints()]


def content(folder: RunFolder) -> dict[str, tuple[int, str]]:
    """Every file and folder of a local run folder, with its time and digest."""
    found = sorted(Path(folder.url).rglob("*"))
    return {
        str(path): (
            path.stat().st_mtime_ns,
            hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else "",
        )
        for path in found
    }


def test_a_survey_tells_what_goes_and_why_each_other_thing_stays(any_folder: RunFolder) -> None:
    quarantined = commit(any_folder, 5, 1)
    quarantine(any_folder, quarantined, "a flipped byte")
    found = pruning(any_folder).survey(attempt=2)
    assert [(one.name, one.kind, one.goes, one.why) for one in found] == [
        (
            "step-00000001-a0001",
            "checkpoint",
            False,
            "among the best 1 by validation/accuracy",
        ),
        ("step-00000002-a0001", "checkpoint", True, "no rule keeps it"),
        (
            "step-00000004-a0001",
            "checkpoint",
            False,
            "the newest: a resume begins here; among the last 1",
        ),
        ("step-00000005-a0001", "quarantined", False, "a flipped byte"),
        ("checkpoints/step-00000003-a0001", "orphan", True, "never committed, or half deleted"),
    ]
    assert [one.size_bytes for one in found] == [7, 7, 7, 0, 0]


def test_pruning_does_what_the_survey_says(any_folder: RunFolder) -> None:
    told = pruning(any_folder).survey(attempt=2)
    held = begin_attempt(any_folder)
    assert pruning(any_folder).carry_out(held.attempt) == told
    assert steps(any_folder) == [1, 4]
    assert any_folder.store.names("checkpoints") == ["step-00000001-a0001", "step-00000004-a0001"]
    again = pruning(any_folder).carry_out(held.attempt)
    assert [one.goes for one in again] == [False, False]


def test_a_survey_writes_nothing(folder: RunFolder) -> None:
    torn = save(folder, 6, 1)
    folder.store.write(f"checkpoints/{torn}/manifest.json", b"{")
    before = content(folder)
    pruning(folder).survey(attempt=2)
    assert content(folder) == before


def test_where_the_newest_is_damaged_a_resume_begins_with_an_older_one_that_stays(
    folder: RunFolder,
) -> None:
    commit(folder, 5, 1)
    newest = commit(folder, 6, 1)
    folder.store.write(f"checkpoints/{newest}/model.safetensors", b"Weights")
    torn = save(folder, 7, 1)
    folder.store.write(f"checkpoints/{torn}/manifest.json", b"{")
    found = {one.name: one for one in pruning(folder).survey(attempt=2)}
    assert found[str(newest)].kind == found[str(torn)].kind == "damaged"
    assert "model.safetensors: its digest is another" in found[str(newest)].why
    assert found["step-00000005-a0001"].why.startswith("the newest: a resume begins here")
    pruning(folder).carry_out(begin_attempt(folder).attempt)
    assert steps(folder) == [1, 5, 6]
    assert folder.store.names(f"checkpoints/{newest}") == ["manifest.json", "model.safetensors"]
    assert list(folder.quarantined()) == [str(torn)]


def test_what_is_pinned_stays_unless_the_pin_is_to_be_ignored(folder: RunFolder) -> None:
    second = CheckpointName(2, 1)
    held = begin_attempt(folder)
    with pinned(folder.store, [second], "infer"):
        [pin] = folder.store.names(f"pins/{second}")
        [stays] = [one for one in pruning(folder).survey(2) if one.name == str(second)]
        assert not stays.goes
        assert stays.why.startswith("pinned: infer (pins/")
        pruning(folder).carry_out(held.attempt)
        assert steps(folder) == [1, 2, 4]
        ignoring = Pruning(folder, RULES, NOW, tuple, ignored_pins=[f"pins/{second}/{pin}"])
        ignoring.carry_out(held.attempt)
        assert steps(folder) == [1, 4]


class PinnedLate(Store):
    """A store in which somebody pins a checkpoint when its deletion is about to be announced."""

    def write(self, key: str, data: bytes, *, durable: bool = False) -> None:
        if "/deletion-" in key:
            late = key.rpartition("/")[0]
            super().write(f"{late}/infer-1.json", b"somebody reads it")
        super().write(key, data, durable=durable)


def test_one_that_is_pinned_at_the_last_moment_stays_with_its_journal(folder: RunFolder) -> None:
    held = begin_attempt(folder)
    folder.store = PinnedLate(folder.url)
    found = {one.name: one for one in pruning(folder).carry_out(held.attempt)}
    second = found["step-00000002-a0001"]
    assert (second.goes, second.why) == (False, "pinned just now")
    assert steps(folder) == [1, 2, 4]
    assert all(faults(folder, one) == [] for one in folder.checkpoints())


def test_the_journal_of_what_is_deleted_goes_with_it_and_all_else_stays(folder: RunFolder) -> None:
    own = "steps-00000002-00000002-a0001.jsonl"
    folder.store.write(f"journal/{own}", b"{}\n")
    second = folder.checkpoint(CheckpointName(2, 1))
    own_entry = second.manifest.journal[0].model_copy(update={"name": own})
    listing = second.manifest.model_copy(update={"journal": (own_entry,)})
    folder.store.write(f"{second.key}/manifest.json", listing.to_json())
    told = [one.name for one in pruning(folder).survey(2) if one.kind == "orphan"]
    assert told == ["checkpoints/step-00000003-a0001", f"journal/{own}"]
    pruning(folder).carry_out(begin_attempt(folder).attempt)
    assert [f"journal/{name}" for name in folder.store.names("journal")] == [SEGMENT]
    assert all(faults(folder, one) == [] for one in folder.checkpoints())
