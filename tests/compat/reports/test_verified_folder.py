"""A reported folder on a node that has not got the storage's disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import commands
from tests.compat.reports.ranks import Ranks, write
from tests.flows.conftest import ROOT
from tests.storage.doubles.faulty_store import DistantStore
from train_core.storage.run_folder import RunFolder

READER = """
import sys
from tests.storage.doubles.faulty_store import DistantStore
from train_core.rank.checkpoint.verified_folder import cache_of, verified_folder
from train_core.storage.run_folder import RunFolder

run = RunFolder(sys.argv[1], "run")
(committed,) = run.checkpoints()
run.store = DistantStore(run.url, sys.argv[2])
print("ready", flush=True)
input()
print(verified_folder(run, committed, cache_of(run, 1)))
"""
"""What each process runs: it begins when it gets a line, and prints where the folder is."""


@pytest.mark.slow
def test_eight_processes_that_ask_at_once_download_it_once(
    folder: RunFolder, start: Callable[..., Ranks], tmp_path: Path
) -> None:
    reported = write(tmp_path / "reported" / "deep", **{"er.bin": "whole"}).parent
    (reported / "model.pt").write_text("weights")
    start(1).report([reported])
    readers = [(folder.storage, str(tmp_path / "notes"))] * 8
    (place,) = set(commands.at_once(READER, *readers, cwd=ROOT))
    assert Path(place, "deep", "er.bin").read_text() == "whole"
    assert not Path(place).is_relative_to(tmp_path / "storage")
    # One for each of the two files.
    store = DistantStore(folder.url, tmp_path / "notes")
    assert store.everything.count("download") == 2
