"""What lies below a folder, to be compared before and after a command."""

from __future__ import annotations

import os
import stat
from pathlib import Path


def everything(folder: Path) -> dict[str, tuple[int, bytes | str]]:
    """All that is below, by its path: its kind and its content or size, or where it leads."""
    found: dict[str, tuple[int, bytes | str]] = {}
    for path in folder.rglob("*"):
        kind, size_bytes = path.lstat().st_mode, path.lstat().st_size
        content: bytes | str = ""
        if stat.S_ISLNK(kind):
            content = os.readlink(path)
        elif stat.S_ISREG(kind):
            content = path.read_bytes() if size_bytes < 2**24 else str(size_bytes)
        found[str(path)] = (kind, content)
    return found
