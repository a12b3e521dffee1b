"""Whoever deletes may die at any moment: what is there is the old state or the new, no third."""

from __future__ import annotations

import shutil
import subprocess
import sys
from contextlib import suppress
from itertools import count
from pathlib import Path

import pytest

from tests.marks import slow
from tests.storage.doubles.faulty_store import LOOK, LOOKS, FaultyStore
from tests.storage.doubles.killed import ACTIONS, begin, prune
from tests.storage.samples import WEIGHTS, manifest, save
from tests.storage.samples import commit as commit_small
from train_core.errors import StorageError
from train_core.storage.cleanup.delete_checkpoint import delete_unless_pinned
from train_core.storage.coordination.holder import Holder
from train_core.storage.objects.store import Store
from train_core.storage.records.manifest import FileEntry
from train_core.storage.records.names import CheckpointName
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import RunWriter, begin_attempt
from train_core.storage.verification.checkpoints import faults

ROOT = Path(__file__).parents[3]
FILES = ("model.safetensors", "optimizer.safetensors", "state.json")


def commit(folder: RunFolder, step: int, accuracy: float) -> CheckpointName:
    """A checkpoint of three files, with a segment that it alone lists."""
    name = CheckpointName(step, 1)
    for file in FILES:
        folder.store.write(f"checkpoints/{name}/{file}", WEIGHTS)
    segment = f"steps-{step:08d}-{step:08d}-a0001.jsonl"
    folder.store.write(f"journal/{segment}", b"{}\n")
    changed = {
        "files": tuple(FileEntry.of(file, WEIGHTS) for file in FILES),
        "journal": (FileEntry.of(segment, b"{}\n"),),
        "metrics": {"validation/accuracy": accuracy},
    }
    RunWriter(folder, 1).commit(manifest(step, 1).model_copy(update=changed))
    return name


def begun(folder: RunFolder) -> RunFolder:
    """Checkpoints 1 (the best), 2, 3 and 4 (the newest); a fifth that was never committed."""
    begin_attempt(folder).release()
    for step, accuracy in ((1, 0.9), (2, 0.2), (3, 0.3), (4, 0.4)):
        commit(folder, step, accuracy)
    save(folder, 5, attempt=1)
    folder.store.write("journal/steps-00000005-00000005-a0001.jsonl", b"{}\n")
    dead = (
        Holder.here()
        .model_copy(update={"process_started": 1.0, "process_start": ""})
        .model_dump_json()
    )
    pin = f'{{"why": "infer", "created_at": "2026-01-01T00:00:00Z", "holder": {dead}}}'
    folder.store.write("pins/step-00000002-a0001/infer-1.json", pin.encode())
    return folder


def steps(folder: RunFolder) -> list[int]:
    return [one.name.step for one in folder.checkpoints()]


def keys(folder: RunFolder) -> list[str]:
    """All that is there, without leases, whose number says how often somebody began.

    And without the beginnings of objects that were never finished, which no listing shows.
    """
    found = (path for path in Path(folder.url).rglob("[!.]*") if path.is_file())
    names = (str(path.relative_to(folder.url)) for path in found)
    return sorted(name for name in names if not name.startswith("lease/"))


def has_a_torn_one(folder: RunFolder) -> bool:
    """Whether a committed checkpoint's folder is there without its manifest."""
    return any(
        "manifest.json" not in folder.store.names(f"checkpoints/step-{step:08d}-a0001")
        and folder.store.names("checkpoints").count(f"step-{step:08d}-a0001")
        for step in (1, 2, 3, 4)
    )


def killed_at_every_change(tmp_path: Path, action: str) -> list[RunFolder]:
    """Run folders in which `action` was killed; in the last one it got through."""
    template = begun(RunFolder(str(tmp_path), "template"))
    above = tmp_path / "killed"
    subprocess.run(
        [sys.executable, "-m", "tests.storage.doubles.killed", action, template.url, str(above)],
        cwd=ROOT,
        check=True,
        timeout=100,
    )
    found = sorted(above.iterdir(), key=lambda path: int(path.name))
    return [RunFolder(str(path), "run") for path in found]


def check_whole(folder: RunFolder, must_stay: set[int]) -> None:
    """Each checkpoint is whole or not there, and those that nobody was to delete are there."""
    assert must_stay <= set(steps(folder)) <= {1, 2, 3, 4}
    assert [faults(folder, one) for one in folder.checkpoints()] == [[]] * len(steps(folder))
    assert folder.damaged() == {}
    assert folder.quarantined() == {}


@pytest.mark.promise("killed-delete")
def test_a_delete_that_is_killed_leaves_the_checkpoint_whole_or_not_there(tmp_path: Path) -> None:
    *killed, through = killed_at_every_change(tmp_path, "delete")
    assert steps(through) == [1, 3, 4]
    torn = 0
    for folder in killed:
        check_whole(folder, must_stay={1, 3, 4})
        torn += has_a_torn_one(folder)
        is_there = 2 in steps(folder)
        begin(folder)
        # The next attempt cleans up, and decides nothing: that is for the rules.
        check_whole(folder, must_stay={1, 3, 4})
        assert (2 in steps(folder)) == is_there
        assert not has_a_torn_one(folder)
        assert len(folder.store.names("checkpoints")) == len(steps(folder))
        assert not [key for key in keys(folder) if key.startswith("pins/")]
    assert {2 in steps(folder) for folder in killed} == {True, False}
    # Killed between any two of its three files, at least.
    assert torn >= len(FILES)


@pytest.mark.promise("killed-delete")
@pytest.mark.slow
def test_a_prune_that_is_killed_keeps_what_stays_and_the_next_one_ends_it(tmp_path: Path) -> None:
    *killed, through = killed_at_every_change(tmp_path, "prune")
    assert steps(through) == [1, 4]
    assert any(has_a_torn_one(folder) for folder in killed)
    assert {len(steps(folder)) for folder in killed} == {4, 3, 2}
    for folder in killed:
        check_whole(folder, must_stay={1, 4})
        prune(folder)
        assert keys(folder) == keys(through)


def test_a_beginning_that_is_killed_while_it_collects_is_ended_by_the_next(tmp_path: Path) -> None:
    *killed, through = killed_at_every_change(tmp_path, "begin")
    assert steps(through) == [1, 2, 3, 4]
    assert {"checkpoints/step-00000005-a0001/model.safetensors" in keys(one) for one in killed} == {
        True,
        False,
    }
    for folder in killed:
        check_whole(folder, must_stay={1, 2, 3, 4})
        begin(folder)
        assert keys(folder) == keys(through)


@pytest.mark.parametrize(
    # A prune looks most often.
    "action",
    ["delete", slow("begin"), slow("prune")],
)
def test_a_deleter_that_cannot_read_deletes_nothing_that_is_to_stay(
    tmp_path: Path, action: str
) -> None:
    template = begun(RunFolder(str(tmp_path), "template"))

    def act_where_a_look_fails(number: int) -> tuple[RunFolder, list[str]]:
        folder = RunFolder(str(tmp_path / f"{number}"), "run")
        shutil.copytree(template.url, folder.url)
        folder.store = store = FaultyStore(folder.url, tmp_path / "notes" / f"{number}")
        store.fail_at(number, kind=LOOK)
        with suppress(StorageError):
            ACTIONS[action](folder)
        store.work_again()
        return folder, store.everything

    through, everything = act_where_a_look_fails(10**6)
    looks = sum(kind in LOOKS for kind in everything)
    assert looks >= 5
    left = steps(through)
    prune(through)
    were_held_up = []
    for number in range(1, looks + 1):
        folder, _ = act_where_a_look_fails(number)
        check_whole(folder, must_stay=set(left))
        were_held_up.append(steps(folder) != left)
        prune(folder)
        assert keys(folder) == keys(through)
    assert any(were_held_up) == (left != [1, 2, 3, 4])


class Died(BaseException):
    """The process is no more."""


class DiesAt(Store):
    """A store whose process dies before its k-th change, and does nothing from then on.

    It deletes a folder object by object, the manifest not first, as a storage may.
    """

    changes_left = 0

    def _change(self) -> None:
        if self.changes_left == 0:
            raise Died
        self.changes_left -= 1

    def write(self, key: str, data: bytes, *, durable: bool = False) -> None:
        self._change()
        super().write(key, data, durable=durable)

    def delete(self, key: str) -> None:
        for name in reversed(self.names(key)):
            self.delete(f"{key}/{name}")
        self._change()
        super().delete(key)


def test_a_delete_that_dies_on_any_storage_leaves_the_checkpoint_whole_or_not_there(
    storage_url: str,
) -> None:
    folder = RunFolder(storage_url, "run")
    dying = RunFolder(storage_url, "run")
    dying.store = store = DiesAt(folder.url)
    segment = manifest().journal[0].name
    folder.store.write(f"journal/{segment}", b"{}\n")
    seen = set()
    for changes in count():
        # The next attempt cleans up what the last one half deleted.
        begin(folder)
        attempt = changes + 1
        assert folder.store.names("checkpoints") == [str(one.name) for one in folder.checkpoints()]
        name = commit_small(folder, step=attempt, attempt=attempt)
        store.changes_left = changes
        try:
            delete_unless_pinned(RunWriter(dying, attempt), str(name))
        except Died:
            is_there = attempt in steps(folder)
            left = folder.store.names(f"checkpoints/{name}")
            assert is_there == (left == ["manifest.json", "model.safetensors"])
            assert all(faults(folder, one) == [] for one in folder.checkpoints())
            seen.add((is_there, len(left)))
        else:
            break
    assert str(name) not in folder.store.names("checkpoints")
    # Whole and there; or not there, with one of its files left, or with none.
    assert seen >= {(True, 2), (False, 1), (False, 0)}
