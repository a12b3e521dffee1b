"""A resume on several ranks passes over what is not good, and all ranks go on from the same."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.engine import watched_rank
from tests.engine.processes import train
from tests.engine.test_exact import CONFIG
from train_core.storage.run_folder import RunFolder
from train_core.storage.store import Store


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
    assert names[-1] in folder.quarantined()[str(newest.name)]


@pytest.mark.parametrize("damage", [bit_flipped, cut, gone, a_folder])
@pytest.mark.parametrize("workers", [2, 3])
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
