"""A project whose files have everyday names, as modules of Python and of packages have, too."""

from __future__ import annotations

from pathlib import Path

TAKEN = (
    *("secrets", "statistics", "random", "platform"),
    *("prefect", "ray", "numpy", "typing_extensions"),
)
"""Modules of Python's library, and of packages that evertrain imports."""
_WORKLOAD = '''
"""A workload that imports the project's own `tasks` and `flows`, and the library's `statistics`."""

import statistics

import tasks
from flows import nightly
from train_core.workloads.digits import Digits

assert (nightly.HOUR, tasks.IS_CLEAN, statistics.mean([1, 3])) == (3, True, 2)


class Mine(Digits):
    """Handwritten digits."""
'''


def write_project(folder: Path) -> None:
    """Write the project; its workload is `mine:Mine`."""
    for name in TAKEN:
        (folder / f"{name}.py").write_text(f"raise ImportError('this {name} is the project\\'s')\n")
    (folder / "tasks.py").write_text("IS_CLEAN = True\n")
    (folder / "flows").mkdir()
    (folder / "flows/__init__.py").touch()
    (folder / "flows/nightly.py").write_text("HOUR = 3\n")
    (folder / "mine.py").write_text(_WORKLOAD)
