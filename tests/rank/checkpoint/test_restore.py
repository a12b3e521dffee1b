"""A resume on several ranks passes over what is not good, and all ranks go on from the same."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load, save

from tests.marks import slow
from tests.rank.alone import run
from tests.rank.test_exact import CONFIG
from tests.ranks import watched_rank
from tests.ranks.processes import train
from train_core.errors import CheckpointError
from train_core.storage.objects.store import Store
from train_core.storage.records.journal import read_segments
from train_core.storage.records.manifest import CheckpointManifest, FileEntry
from train_core.storage.records.names import MANIFEST_JSON, MODEL_FILE, STATE_JSON
from train_core.storage.run_folder import Commit, RunFolder

QUARANTINED = "checkpoint/quarantined"


def bit_flipped(store: Store, key: str) -> None:
    data = bytearray(store.read(key))
    data[len(data) // 2] ^= 1
    store.write(key, bytes(data))


def cut(store: Store, key: str) -> None:
    store.write(key, store.read(key)[:-1])


def gone(store: Store, key: str) -> None:
    store.delete(key)


def a_folder(store: Store, key: str) -> None:
    store.delete(key)
    store.write(f"{key}/file", b"")


def check_resume(
    storage: str, workers: int, damage: Callable[[Store, str], None], home: Path
) -> None:
    """Damage the newest checkpoint of a run, and see it go on from the one before."""
    at: dict[str, Any] = {"workers": workers, "home": str(home)}
    stopped = CONFIG | {"max_steps": 8, "keep_last": 9}
    train(storage, "run", attempt=1, **at, config=stopped)
    folder = RunFolder(storage, "run")
    *_, older, newest = folder.checkpoints()
    assert (older.manifest.step, newest.manifest.step) == (6, 8)
    # The last file is another rank's than the first.
    names = [file.name for file in newest.manifest.files if file.name.startswith("optimizer")]
    damage(folder.store, f"{newest.key}/{names[-1]}")
    found = train(storage, "run", attempt=2, **at, config=CONFIG)
    assert found == train(str(home), "whole", attempt=1, workers=1, config=CONFIG) | {
        "resumed_from": 6
    }
    reason = folder.quarantined()[str(newest.name)]
    assert names[-1] in reason
    # Told once, by rank 0, in the log and in the journal: with the first step that was done anew.
    told = f"checkpoint {newest.name} of run 'run' is quarantined: {reason}\n"
    assert Path(home, "run-2.log").read_text().count(told) == 1
    journal = read_segments(folder.store, folder.checkpoints()[-1].manifest.journal)
    counted = {e.step: e.rates[QUARANTINED] for e in journal if QUARANTINED in e.rates}
    assert counted == {7: 1}


@pytest.mark.promise("damaged-checkpoint")
@pytest.mark.parametrize(
    ("workers", "damage"),
    [
        *((2, bit_flipped), (3, cut), (2, gone)),
        *(slow(2, cut), slow(2, a_folder), slow(3, bit_flipped), slow(3, gone), slow(3, a_folder)),
    ],
)
def test_all_ranks_go_on_from_the_newest_good_checkpoint(
    workers: int, damage: Callable[[Store, str], None], tmp_path: Path
) -> None:
    check_resume(str(tmp_path), workers, damage, tmp_path)


@pytest.mark.s3
def test_so_they_do_on_s3(object_store: str, tmp_path: Path) -> None:
    check_resume(f"{object_store}/{uuid.uuid4().hex}", 2, a_folder, tmp_path)


@pytest.mark.parametrize("workers", [2, 3])
def test_each_file_is_read_and_hashed_by_one_rank_and_the_work_is_shared(
    workers: int, tmp_path: Path
) -> None:
    at: dict[str, Any] = {"workers": workers, "main": watched_rank.main}
    stopped = CONFIG | {"epochs": 1, "keep_last": 9}
    train(str(tmp_path), "run", attempt=1, **at, config=stopped)
    (*_, newest) = RunFolder(str(tmp_path), "run").checkpoints()
    of_ranks = train(str(tmp_path), "run", attempt=2, **at, config=CONFIG | {"max_steps": 6})
    assert {said["resumed_from"] for said in of_ranks} == {5}
    sizes = {f"{newest.key}/{file.name}": file.size_bytes for file in newest.manifest.files}
    read = [[key for key in said["was_read"] if key in sizes] for said in of_ranks]
    assert Counter(key for keys in read for key in keys) == Counter(sizes.keys())
    # None has more to do than its part, but for what no file can be cut into.
    loads = [sum(sizes[key] for key in keys) for keys in read]
    assert max(loads) <= sum(loads) / workers + max(sizes.values())
    assert min(loads) > 0


def without_a_tensor(folder: RunFolder, checkpoint: Commit) -> None:
    """Commit the checkpoint anew: all files are what the manifest says, but a tensor is gone."""
    key = f"{checkpoint.key}/{MODEL_FILE}"
    tensors = load(folder.store.read(key))
    del tensors["4.bias"]
    data = save(tensors)
    folder.store.write(key, data)
    files = checkpoint.manifest.files
    entries = tuple(FileEntry.of(e.name, data) if e.name == MODEL_FILE else e for e in files)
    manifest = checkpoint.manifest.model_copy(update={"files": entries})
    folder.store.write(f"{checkpoint.key}/{MANIFEST_JSON}", manifest.to_json())


@pytest.mark.promise("damaged-checkpoint")
def test_if_none_is_good_the_error_says_what_is_wrong_with_each(tmp_path: Path) -> None:
    folder = RunFolder(str(tmp_path), "run")
    every = {"checkpoint_every_steps": 1, "checkpoint_backpressure": "wait", "keep_last": 9}
    run(folder, epochs=1, **every)
    of_step = {one.manifest.step: one for one in folder.checkpoints()}
    assert list(of_step) == [1, 2, 3, 4, 5]
    gone(folder.store, f"{of_step[1].key}/optimizer.safetensors")
    bit_flipped(folder.store, f"{of_step[2].key}/{MODEL_FILE}")
    cut(folder.store, f"{of_step[3].key}/{STATE_JSON}")
    bit_flipped(folder.store, f"{of_step[4].key}/{MANIFEST_JSON}")
    without_a_tensor(folder, of_step[5])
    faults = {
        1: "optimizer.safetensors is missing",
        2: "model.safetensors has a digest that is not the committed one",
        3: "were committed",
        4: "it does not end with its own digest",
        5: "lacks the tensor 'model/4.bias'",
    }
    # The next start finds the marks of the last one only, and says the same.
    for attempt in (2, 3):
        with pytest.raises(CheckpointError, match=r"no checkpoint of .* is good: ") as raised:
            run(folder, attempt=attempt, epochs=1)
        said = str(raised.value).split("; ")
        for (step, fault), one in zip(faults.items(), said, strict=True):
            assert f"step-{step:08d}-a0001" in one
            assert fault in one


@pytest.mark.promise("goes-on-without-journal")
def test_a_damaged_journal_does_not_keep_a_run_from_going_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole, folder = (RunFolder(str(tmp_path), name) for name in ("whole", "damaged"))
    run(whole, epochs=2)
    run(folder, epochs=2, max_steps=7)
    (segment, *_) = folder.checkpoints()[-1].manifest.journal
    bit_flipped(folder.store, f"journal/{segment.name}")
    run(folder, attempt=2, epochs=2)
    assert f"{segment.name} has a digest that is not the committed one" in caplog.text
    # What is kept of the log has the error, and the error has the file.
    caplog.clear()
    ended, expected = (one.checkpoints()[-1].manifest for one in (folder, whole))
    assert ended.step == expected.step == 10

    def weights(manifest: CheckpointManifest) -> str:
        return next(file.digest for file in manifest.files if file.name == MODEL_FILE)

    assert weights(ended) == weights(expected)
