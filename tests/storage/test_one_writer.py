"""Only the run writer and the cleanup change a run: no other code calls what changes a store."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from train_core.storage.objects.store import Store
from train_core.storage.objects.store_reader import StoreReader

ROOT = Path(__file__).parents[2]
STORAGE = "train_core/storage"
OWNERS = (
    f"{STORAGE}/run_writer.py",
    f"{STORAGE}/fork.py",
    "train_core/champion",
    f"{STORAGE}/cleanup",
    f"{STORAGE}/coordination",
    f"{STORAGE}/records",
    f"{STORAGE}/objects",
)
"""Coordination owns lease, pins, stop requests and mailboxes; the log of a model lies
beside the runs. What `records` has for writing is called by the run writer."""
WRITERS_OF_RECORDS = {"write_file", "append", "amend", "mark_quarantined"}
CHANGES = {name for name in vars(Store) if not name.startswith("_")} - set(vars(StoreReader))
ELSEWHERE = {
    ("train_core/client/verify_resume.py", "Store(runs).delete"),
    ("train_core/functions/checks.py", "Store(request.storage).probe"),
    ("train_core/driver/preparing/preflight.py", "Store(request.storage).probe"),
    ("train_core/tools/export.py", "store.write"),
}
"""Its own temporary runs; the check of a storage; a file of weights that is exported anywhere."""


def sources() -> Iterator[str]:
    for top in ("train_core", "tasks", "flows"):
        for path in (ROOT / top).rglob("*.py"):
            yield path.relative_to(ROOT).as_posix()


def is_store(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Name(id=name)) if name.endswith("Store"):
            return True
        case ast.Call(func=ast.Attribute(value=inner)):
            return is_store(inner)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name.endswith("store")
    return False


def changes_in(source: str) -> Iterator[str]:
    """The calls that change a store, and the names of what writes records that are imported."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=store, attr=name) as called):
                if name in CHANGES and is_store(store):
                    yield ast.unparse(called)
            case ast.ImportFrom(module=str(module), names=names):
                if module.startswith("train_core.storage.records."):
                    yield from (one.name for one in names if one.name in WRITERS_OF_RECORDS)


def test_only_the_run_writer_and_the_cleanup_change_a_run() -> None:
    found = {
        (path, change)
        for path in sources()
        if not path.startswith(OWNERS)
        for change in changes_in((ROOT / path).read_text())
    }
    assert found == ELSEWHERE


def test_coordination_changes_nothing_but_its_own_objects() -> None:
    others = {"CHECKPOINTS", "JOURNAL", "EVALUATIONS", "PREDICTIONS", "ASKED", "DATA", "RUN_JSON"}
    for path in (ROOT / STORAGE / "coordination").glob("*.py"):
        for call, named in changes_and_names(path):
            assert not named & (others | {"DECISIONS"}), f"{path.name}: {call}"


def test_the_log_of_a_model_creates_documents_in_its_folder_and_changes_no_other() -> None:
    found = [
        (path.name, call)
        for path in (ROOT / "train_core/champion").glob("*.py")
        for call, _ in changes_and_names(path)
    ]
    assert sorted(found) == [
        ("earlier.py", "store.create(f'{log}/{numbered(number)}', _CLOSING)"),
        ("log.py", "self.store.create(key, with_checksum(_Document.of(number, made)))"),
    ]


def changes_and_names(path: Path) -> Iterator[tuple[str, set[str]]]:
    """Each call in a file that changes a store, and the names in it."""
    for node in ast.walk(ast.parse(path.read_text())):
        match node:
            case ast.Call(func=ast.Attribute(value=store, attr=name)):
                if name in CHANGES and is_store(store):
                    names = {n.id for n in ast.walk(node) if isinstance(n, ast.Name)}
                    yield ast.unparse(node), names


@pytest.mark.parametrize(
    "source",
    [
        "folder.store.create(key, data)",
        "self._folder.store.delete('checkpoints')",
        "folder.store.with_retries(SHORT).write('report.json', b'')",
        "Store(url).child('run').upload(path, key)",
        "from train_core.storage.records.journal import append",
    ],
)
def test_a_change_beside_the_run_writer_is_noticed(source: str) -> None:
    assert list(changes_in(source))


@pytest.mark.parametrize("source", ["folder.store.read(key)", "file.write(b'')", "queue.put(1)"])
def test_reading_and_writing_elsewhere_are_no_changes_of_a_run(source: str) -> None:
    assert not list(changes_in(source))
