"""A save may be killed or fail anywhere: what is there is the old state or the new, no third."""

from __future__ import annotations

import logging
import os
import shutil
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from tests.marks import SLOW, slow
from tests.rank import alone
from tests.rank.digests import digest_of_training
from tests.ranks.killed_save import CONFIG, drive
from tests.storage.doubles.faulty_store import LOOK, LOOKS, FaultyStore
from train_core.errors import StorageError, UnsavedError
from train_core.rank.checkpoint import journal_buffer
from train_core.storage.objects.store import Store
from train_core.storage.records.journal import read_segments
from train_core.storage.run_folder import RunFolder
from train_core.storage.verification.checkpoints import faults
from train_core.timing import SaveTiming, Timing

ROOT = Path(__file__).parents[3]
run = partial(alone.run, timing=Timing(saving=SaveTiming(retry_s=0.01)))
# No checkpoint; the first; the second beside it; the second alone.
STATES = [[], [1], [1, 2], [2]]
SLOW_ON_S3 = ["local", pytest.param("s3", marks=[pytest.mark.s3, SLOW])]


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The digest of the run that nobody disturbed."""
    folder = RunFolder(str(tmp_path_factory.mktemp("undisturbed")), "run")
    drive(folder)
    return digest_of_training(folder)


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder in memory where there is one: a process that is killed loses nothing of a disk."""
    folder = tempfile.mkdtemp(dir="/dev/shm" if os.path.isdir("/dev/shm") else tmp_path)
    yield Path(folder)
    shutil.rmtree(folder)


@pytest.fixture(autouse=True)
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `tell_nothing` has it."""
    monkeypatch.setattr(journal_buffer, "_LIVE_EVERY_S", 1e6)


def check_whole(folder: RunFolder) -> list[int]:
    """Each checkpoint verifies, and its journal has all steps up to it; which ones there are."""
    checkpoints = folder.checkpoints()
    for one in checkpoints:
        assert faults(folder, one) == []
        entries = read_segments(folder.store, one.manifest.journal)
        steps = [entry.step for entry in entries if "train/loss" in entry.metrics]
        assert steps == list(range(1, one.name.step + 1))
    assert folder.damaged() == folder.quarantined() == {}
    return [one.name.step for one in checkpoints]


@pytest.mark.promise("killed-save")
@pytest.mark.timeout(400)
@pytest.mark.slow
def test_a_training_that_is_killed_anywhere_goes_on_from_the_old_state_or_the_new(
    in_memory: Path, reference: str
) -> None:
    subprocess.run(
        [sys.executable, "-m", "tests.ranks.killed_save", str(in_memory)],
        cwd=ROOT,
        check=True,
        timeout=300,
    )
    # The first one was killed before it had a folder.
    numbers = range(1, max(int(path.name) for path in in_memory.iterdir()) + 1)
    check_killed([RunFolder(str(in_memory), f"{number}") for number in numbers], reference)


def check_killed(folders: list[RunFolder], reference: str) -> None:
    """All but the last one were killed, each a change later; each goes on to the same end."""
    *killed, through = folders
    assert digest_of_training(through) == reference
    seen = []
    for folder in killed:
        seen.append(STATES.index(check_whole(folder) if folder.store.names() else []))
        drive(folder)
        assert digest_of_training(folder) == reference
        # The dead one's leftovers are gone.
        assert check_whole(folder) == [2]
        assert len(folder.store.names("checkpoints")) == 1
        (newest,) = folder.checkpoints()
        assert folder.store.names("journal") == [s.name for s in newest.manifest.journal]
    # The later it dies, the more is there.
    assert all(before <= after for before, after in pairwise(seen))
    assert set(seen) == set(range(len(STATES)))


@pytest.mark.s3
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_so_does_one_on_s3_that_is_killed_before_any_change(
    object_store: str, tmp_path: Path, reference: str
) -> None:
    storage = f"{object_store}/{uuid.uuid4().hex}"
    subprocess.run(
        [
            sys.executable,
            "-m",
            "tests.ranks.killed_save",
            storage,
            str(tmp_path),
        ],
        cwd=ROOT,
        check=True,
        timeout=500,
    )
    numbers = range(1, len(list(tmp_path.iterdir())) + 1)
    check_killed([RunFolder(storage, f"{number}") for number in numbers], reference)


def faulty(storage: str, run_name: str, notes: Path) -> tuple[RunFolder, FaultyStore]:
    folder = RunFolder(storage, run_name)
    store = FaultyStore(folder.url, notes / run_name)
    folder.store = store
    return folder, store


@pytest.mark.promise("storage-outage")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("done", [False, slow(True)], ids=["refused", "lost answer"])
def test_a_training_survives_any_operation_that_fails(
    storage_url: str,
    tmp_path: Path,
    reference: str,
    done: bool,
    caplog: pytest.LogCaptureFixture,
) -> None:
    _, counting = faulty(storage_url, "undisturbed", tmp_path)
    run(faulty(storage_url, "undisturbed", tmp_path)[0], **CONFIG)
    operations = counting.operations
    commits = [number for number, kind in enumerate(operations, 1) if kind == "create"]
    # run.json comes first, live.json last; neither is a part of a save.
    assert (len(commits), commits[0], operations[-1]) == (3, 1, "write")
    for number in range(2, len(operations)):
        folder, store = faulty(storage_url, f"{number}", tmp_path)
        store.fail_at(number, done=done)
        caplog.clear()
        run(folder, **CONFIG)
        warned = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
        assert ["the test has scheduled this" in said for said in warned[:1]] == [True]
        assert ["are saved again" in said for said in warned[1:]] in ([], [True])
        assert check_whole(folder)[-1] == 2
        assert digest_of_training(folder) == reference


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("storage_url", SLOW_ON_S3, indirect=True)
def test_a_training_survives_any_look_that_fails(
    storage_url: str, tmp_path: Path, reference: str
) -> None:
    undisturbed, counting = faulty(storage_url, "undisturbed", tmp_path)
    run(undisturbed, **CONFIG)
    everything = counting.everything
    looks = sum(kind in LOOKS for kind in everything)
    # In each save: whether we are fenced, what is there, and what may be deleted now.
    assert sum(kind in LOOKS for kind in everything[everything.index("put") :]) >= 15
    refused = 0
    for number in range(1, looks + 1):
        folder, store = faulty(storage_url, f"{number}", tmp_path)
        store.fail_at(number, kind=LOOK)
        try:
            run(folder, **CONFIG)
        except StorageError as error:
            # Nothing was trained yet: the caller is told.
            if "the test has scheduled this" not in str(error) or "put" in store.everything:
                raise
            refused += 1
            run(folder, **CONFIG)
        # How often one looks depends a little on how fast a storage is: this one may be to come.
        store.work_again()
        assert check_whole(folder)[-1] == 2
        assert digest_of_training(folder) == reference
    assert refused


@pytest.mark.promise("finalists")
@pytest.mark.parametrize("done", [False, slow(True)], ids=["refused", "lost answers"])
def test_no_candidate_is_lost_to_operations_that_fail(tmp_path: Path, done: bool) -> None:
    """Each checkpoint with a validation is stored in the end, as it was."""

    def candidates(run_name: str, fail_at: int = 0) -> tuple[list[tuple[int, bool]], int]:
        folder, store = faulty(str(tmp_path), run_name, tmp_path / "notes")
        if fail_at:
            store.fail_at(fail_at, done=done, times=3)
        run(folder, epochs=3, keep_last=9)
        told = [(one.name.step, one.manifest.validated) for one in folder.checkpoints()]
        return told, len(store.operations)

    expected, count = candidates("undisturbed")
    assert expected == [(5, True), (10, True), (15, True)]
    # run.json comes first, and there are no more ends of epochs for the last ones.
    for number in range(2, count - 2):
        assert candidates(f"{number}", number)[0] == expected


@pytest.mark.promise("unsaved-limit")
@pytest.mark.parametrize(
    "number", [number if number in (2, 11) else slow(number) for number in range(2, 12)]
)
def test_a_training_that_can_save_no_more_says_so_and_goes_on_later(
    storage_url: str, tmp_path: Path, reference: str, number: int
) -> None:
    folder, store = faulty(storage_url, "run", tmp_path)
    store.fail_at(number, times=None)
    with pytest.raises(UnsavedError, match="the test has scheduled this") as caught:
        run(folder, max_unsaved_s=2, **CONFIG)
    kept = check_whole(folder)
    assert caught.value.last_good == (str(folder.checkpoints()[-1].name) if kept else None)
    store.work_again()
    run(folder, attempt=2, **CONFIG)
    assert check_whole(folder)[-1] == 2
    assert digest_of_training(folder) == reference


class AwayStore(Store):
    """Away, for writers and readers alike, as soon as the first manifest is created."""

    calls_left: int | None = None

    def _answer(self) -> None:
        if self.calls_left:
            self.calls_left -= 1
            raise StorageError("the storage is away")

    def create(self, key: str, data: bytes) -> None:
        self._answer()
        super().create(key, data)
        if key.endswith("manifest.json") and self.calls_left is None:
            self.calls_left = 20
            self._answer()

    def put(self, key: str, data: memoryview) -> str:
        self._answer()
        return super().put(key, data)

    def exists(self, key: str) -> bool:
        self._answer()
        return super().exists(key)

    def delete(self, key: str) -> None:
        self._answer()
        super().delete(key)


def test_an_older_commit_whose_answer_was_lost_is_not_taken_for_the_last(
    tmp_path: Path, reference: str
) -> None:
    folder = RunFolder(str(tmp_path), "run")
    store = AwayStore(folder.url)
    folder.store = store
    run(folder, **CONFIG)
    assert store.calls_left == 0
    assert check_whole(folder)[-1] == 2
    assert digest_of_training(folder) == reference
