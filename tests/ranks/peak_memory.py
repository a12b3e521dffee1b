"""How much memory it takes to read a run folder that somebody made too large.

`python -m tests.ranks.peak_memory RUN…` reads each run in a process of its own, and prints
for each one by how many bytes that grew at its peak, and what it was told.
"""

from __future__ import annotations

import json
import re
import sys
from functools import partial
from pathlib import Path

from tests.storage.doubles.killed import forked
from train_core.errors import EvertrainError
from train_core.rank.checkpoint.reader import load_state
from train_core.storage.coordination import lease
from train_core.storage.records.journal import read_segments
from train_core.storage.run_folder import RunFolder


def read_all(folder: RunFolder) -> list[str]:
    """All that is read of a run that goes on: what its errors say."""
    said = list(folder.damaged().values())
    acts = [folder.record, folder.report, folder.live, lambda: lease.holder_of(folder.store)]
    for one in folder.checkpoints():
        acts.append(lambda one=one: load_state(folder.store, one))  # type: ignore[misc]
        acts.append(lambda one=one: [*read_segments(folder.store, one.manifest.journal)])  # type: ignore[misc]
    for act in acts:
        try:
            act()
        except EvertrainError as error:
            said.append(str(error))
    return said


def memory_bytes(name: str) -> int:
    """VmRSS: what this process has in memory; VmHWM: the most that it had."""
    found = re.search(rf"^{name}:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found
    return int(found[1]) * 1024


def read_and_tell(url: str) -> None:
    before = memory_bytes("VmRSS")
    said = read_all(RunFolder.at(url))
    print(json.dumps([memory_bytes("VmHWM") - before, said]), flush=True)  # noqa: T201


def main(*urls: str) -> None:
    # What is loaded when it is first used is loaded once, before the forks.
    read_all(RunFolder.at(urls[0]))
    for url in urls:
        assert forked(partial(read_and_tell, url)) == 0


if __name__ == "__main__":
    main(*sys.argv[1:])
