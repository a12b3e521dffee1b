"""A power failure loses no commit: what a manifest lists is on the disk before it has its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.rank.alone import run
from tests.storage.doubles.syncs import recorded
from train_core.storage.run_folder import RunFolder

CONFIG = {
    "settings": {"num_train": 96, "num_validation": 20},
    "epochs": 1,
    "checkpoint_every_steps": 1,
    "checkpoint_backpressure": "wait",
    "keep_last": 9,
}


@pytest.mark.promise("commit-last")
def test_all_of_a_checkpoint_is_kept_before_its_manifest_and_the_manifest_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    syncs = recorded(monkeypatch)
    folder = RunFolder(str(tmp_path / "storage"), "run")
    run(folder, **CONFIG)
    checkpoints = folder.checkpoints()
    assert [one.name.step for one in checkpoints] == [1, 2, 3]
    for one in checkpoints:
        manifest = folder.store.path(f"{one.key}/manifest.json")
        committed = syncs.when_named(manifest)
        keys = [f"{one.key}/{entry.name}" for entry in one.manifest.files]
        keys += [f"journal/{entry.name}" for entry in one.manifest.journal]
        assert len(keys) >= 4
        for key in keys:
            assert syncs.missing(folder.store.path(key), str(tmp_path), before=committed) == []
        assert syncs.have_bytes(manifest, before=committed)
        assert syncs.missing(manifest, str(tmp_path)) == []
