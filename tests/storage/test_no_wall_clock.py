"""No wall clock decides who lives, or what is old: two machines' clocks differ, and clocks step.

What is recorded for people (`created_at`) may say the time; nothing in the storage may ask it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
ALLOWED = {
    # What an earlier version wrote, and systems without /proc, have no other time.
    ("coordination/holder.py", "create_time"): 2,
    # A file's time beside that of a file that was just written there: one server's clock.
    ("objects/backends/disk_files.py", "st_mtime"): 2,
}
ASKS = {"st_mtime", "st_ctime", "st_atime", "create_time", "utcnow", "today"}


def asked(tree: ast.AST) -> Iterator[str]:
    recorded = {
        id(node.func.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == "isoformat"
    }
    # The rules of retention speak of days; a person wrote them.
    recorded |= {
        id(keyword.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "now" and "verdicts" in ast.unparse(node.func)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="time"), attr="time" | "time_ns"):
                yield "time.time"
            case ast.ImportFrom(module="time", names=names):
                yield from (f"time.{one.name}" for one in names if one.name.startswith("time"))
            case ast.Call(func=ast.Attribute(attr="now")) if id(node) not in recorded:
                yield "datetime.now"
            case ast.Attribute(attr=name) if name in ASKS:
                yield name


def test_no_module_of_the_storage_asks_a_wall_clock() -> None:
    found: dict[tuple[str, str], int] = {}
    storage = ROOT / "train_core/storage"
    for path in storage.rglob("*.py"):
        for name in asked(ast.parse(path.read_text())):
            key = path.relative_to(storage).as_posix(), name
            found[key] = found.get(key, 0) + 1
    # The signature of a request to S3 ends at a time of S3's.
    found.pop(("objects/backends/s3_client.py", "datetime.now"), None)
    assert found == ALLOWED
