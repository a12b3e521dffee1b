"""A rank that stood still while another attempt took the run can neither commit nor delete."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.rank.test_exact import CONFIG
from tests.ranks.processes import files, ranks, train
from train_core.storage.run_folder import RunFolder
from train_core.storage.run_writer import begin_attempt


def everything(folder: RunFolder) -> dict[str, bytes]:
    """All that is there but the hint for people and what a deletion announces of itself."""
    fs, root = folder.store.fs, folder.store.path("")
    found = {path.removeprefix(root): fs.cat_file(path) for path in fs.find(root)}
    others = ("live.json", "/deletion-")
    return {name: data for name, data in found.items() if not any(o in name for o in others)}


@pytest.mark.promise("fencing")
@pytest.mark.parametrize(
    ("point", "step", "workers"),
    [
        ("stop_before_manifest", 4, 1),
        ("stop_before_manifest", 6, 2),
        ("stop_before_delete", 2, 1),
        ("stop_in_delete", 2, 1),
    ],
)
def test_a_zombie_neither_commits_nor_deletes(
    point: str, step: int, workers: int, storage_url: str, tmp_path: Path
) -> None:
    folder = RunFolder(storage_url, "run")
    # The ranks of the tests take no lease themselves: the first attempt is over, as far as it says.
    begin_attempt(folder).release()
    task: dict[str, Any] = {
        "storage": folder.storage,
        "home": str(tmp_path),
        "run": "run",
        "attempt": 1,
        "config": CONFIG | {"keep_last": 1, "keep_best": 1},
    }
    with ranks(task, workers, {"point": point, "step": step, "rank": 0}) as (zombie, *_):
        process = psutil.Process(zombie.pid)
        while process.status() != psutil.STATUS_STOPPED:
            assert zombie.is_alive(), files(task)[0].read_text()
            zombie.join(0.05)
        # The other ranks wait for it, as they would behind a network that is cut: were they dead,
        # it might learn of that first.
        assert begin_attempt(folder).attempt == 2
        (tmp_path / "again").mkdir()
        # Nothing of what is there goes by itself now.
        config = task["config"] | {"keep_last": 100}
        how: dict[str, Any] = {"config": config, "home": str(tmp_path / "again")}
        again = train(folder.storage, "run", attempt=2, workers=2, **how)
        assert again is not None
        before = everything(folder)
        process.resume()
        zombie.join(60)
        assert zombie.exitcode == 1
        assert "attempt 1 was replaced by attempt 2" in files(task)[0].read_text()
        after = everything(folder)
    # What it had begun to store lies there, uncommitted.
    assert {name for name in after.keys() - before.keys() if "a0001" not in name} == set()
    assert not [name for name in after.keys() - before.keys() if name.endswith("manifest.json")]
    assert {name: after.get(name) for name in before} == before
