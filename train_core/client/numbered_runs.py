"""Runs that are numbered in their storage, as those of `evertrain demo`."""

from __future__ import annotations

import re

from train_core.storage.objects.store import Store
from train_core.storage.run_folder import RunFolder


def unfinished_or_next(storage: str, prefix: str) -> RunFolder:
    """The last of the runs `<prefix>-001`, `<prefix>-002`, … if it has no report, else the next.

    Its folder may be without a record, if an attempt died early.
    """
    pattern = re.compile(rf"{re.escape(prefix)}-(\d{{3,}})")
    found = (pattern.fullmatch(name) for name in Store(storage).names())
    last = max((int(match[1]) for match in found if match), default=0)
    folder = RunFolder(storage, f"{prefix}-{last:03d}")
    if last and folder.report() is None:
        return folder
    return RunFolder(storage, f"{prefix}-{last + 1:03d}")
