"""Run folders as an enemy could write them: a whole run, spoiled in some places."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from tests.hostile.whole_run import (
    BEST,
    EVALUATION,
    NEWEST,
    PREDICTIONS,
    SEGMENT,
    reseal,
    resealed,
    vouch_for,
)
from train_core.storage.records.documents import MAX_DOCUMENT_BYTES
from train_core.storage.records.manifest import FileEntry
from train_core.storage.records.names import CheckpointName, LeaseName
from train_core.storage.run_folder import RunFolder

MANIFESTS = [f"checkpoints/{name}/manifest.json" for name in (BEST, NEWEST)] + [
    f"{EVALUATION}/manifest.json",
    f"{PREDICTIONS}/_manifest.json",
]
DOCUMENTS = [
    *("run.json", "report.json", "live.json", "asked/0001.json"),
    *(f"lease/0001{end}.json" for end in ("", "-beat", "-seal", "-stop")),
    f"pins/{BEST}/infer-0123abcd.json",
    f"checkpoints/{BEST}/quarantined.json",
]
FILES = [
    f"checkpoints/{NEWEST}/model.safetensors",
    f"checkpoints/{NEWEST}/state.json",
    f"{EVALUATION}/metrics.json",
    f"{PREDICTIONS}/part-00000.parquet",
    f"journal/{SEGMENT}",
    "curves.png",
]
FOLDERS = [
    *("checkpoints", "journal", "lease", "pins", "asked", "evaluations", "predictions", "data"),
    *(f"checkpoints/{NEWEST}", EVALUATION, PREDICTIONS),
]
EVERYTHING = [*MANIFESTS, *DOCUMENTS, *FILES, *FOLDERS]

Spoil = Callable[[RunFolder, Path], None]
"""Spoils the run folder; the path is a folder outside of it, which nobody may touch."""

TEXTS = st.one_of(
    st.text(st.characters(codec="utf-8")),
    st.sampled_from(["x[/nope]", "[bold red]red[/]", "\x1b[31mred", "one\nFORGED", "\x9b31m"]),
    st.sampled_from(["", "x" * 5000, "../../etc", "/etc/passwd", "a/b", "NaN", "-1", "1" * 400]),
)
NUMBERS = st.one_of(
    st.integers(),
    st.floats(),
    st.sampled_from([True, False, None, 10**18, 10**300, -1, 1.5, 2**63]),
)
VALUES = st.recursive(
    NUMBERS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=6,
)


def _place(folder: RunFolder, key: str) -> Path:
    """The place of what is at the key, which is empty then."""
    path = Path(folder.url, key)
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()
    # Another one may have spoiled a folder above it.
    for above in reversed(path.parents):
        if not above.is_dir():
            above.unlink(missing_ok=True)
            above.mkdir()
    return path


def spoiler(act: Callable[..., object]) -> Callable[..., Spoil]:
    """Gives what does this to a run folder, by the other arguments of `act`."""

    def given(*arguments: Any) -> Spoil:
        return lambda folder, _: act(folder, *arguments) and None

    return given


def where_it_is(act: Callable[..., object]) -> Callable[..., None]:
    """Spoils what is there and can be read; what an earlier one has taken away stays as it is."""

    def spoil(*arguments: Any) -> None:
        with suppress(OSError, ValueError, KeyError, TypeError, RecursionError):
            act(*arguments)

    return spoil


def links(key: str, *, is_chain: bool = False) -> Spoil:
    """A link to the like of it outside, or to itself."""

    def spoil(folder: RunFolder, outside: Path) -> None:
        path = _place(folder, key)
        path.symlink_to(path.name if is_chain else outside / "run" / key)

    return spoil


@spoiler
def is_special(folder: RunFolder, key: str, make: Callable[[Path], object]) -> None:
    """A pipe, a socket, a folder in its place."""
    make(_place(folder, key))


def listens(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as bound:
        # The path of a socket is short.
        here = os.open(path.parent, os.O_RDONLY)
        try:
            bound.bind(f"/proc/self/fd/{here}/{path.name}")
        finally:
            os.close(here)


def is_device(path: Path) -> None:
    """One without an end, whose size is 0."""
    with suppress(PermissionError):  # only root makes devices
        os.mknod(path, 0o600 | stat.S_IFCHR, os.makedev(1, 5))


@spoiler
@where_it_is
def vouches_for_nothing(folder: RunFolder, key: str, make: Callable[[Path], object]) -> None:
    """What is no file in place of the newest checkpoint's, which is listed with no bytes."""
    vouch_for(folder, NEWEST, key, b"")
    make(_place(folder, f"checkpoints/{NEWEST}/{key}"))


@spoiler
@where_it_is
def says_digits(folder: RunFolder, key: str, field: str, num_digits: int) -> None:
    """A number so long that Python does not make an int of it."""
    reseal(folder, key, lambda content: content | {field: 0})
    text = folder.store.read(key, MAX_DOCUMENT_BYTES)
    long = text.replace(f'"{field}": 0'.encode(), f'"{field}": {"9" * num_digits}'.encode())
    Path(folder.url, key).write_bytes(resealed(long))


@spoiler
def has_bytes(folder: RunFolder, key: str, data: bytes) -> None:
    _place(folder, key).write_bytes(data)


@spoiler
def has_size(folder: RunFolder, key: str, size_bytes: int) -> None:
    """So many zeros, sparse on the disk."""
    with _place(folder, key).open("wb") as file:
        file.truncate(size_bytes)


is_gone = spoiler(_place)


@spoiler
@where_it_is
def says(folder: RunFolder, key: str, field: str, value: Any) -> None:
    """A document with another value, whose digest is made anew."""
    if key in MANIFESTS:
        reseal(folder, key, lambda content: content | {field: value})
        return
    content = json.loads(folder.store.read(key, MAX_DOCUMENT_BYTES))
    Path(folder.url, key).write_text(json.dumps(content | {field: value}))


@spoiler
@where_it_is
def says_twice(folder: RunFolder, key: str) -> None:
    text = folder.store.read(key, MAX_DOCUMENT_BYTES)
    twice = text.replace(b"{", b'{"format": 1, "format": 1,', 1)
    Path(folder.url, key).write_bytes(resealed(twice) if key in MANIFESTS else twice)


@spoiler
@where_it_is
def vouches(folder: RunFolder, file: str, data: bytes) -> None:
    """A file of the newest checkpoint or its journal with these bytes, which is listed so."""
    vouch_for(folder, NEWEST, file, data)


@spoiler
@where_it_is
def copies(folder: RunFolder, source: str, target: str) -> None:
    for name in folder.store.names(source):
        data = folder.store.read(f"{source}/{name}", MAX_DOCUMENT_BYTES)
        _place(folder, f"{target}/{name}").write_bytes(data)


@spoiler
@where_it_is
def leases(folder: RunFolder, attempt: int) -> None:
    data = folder.store.read("lease/0001.json", MAX_DOCUMENT_BYTES)
    _place(folder, f"lease/{LeaseName(attempt)}").write_bytes(data)


@spoiler
@where_it_is
def many_files(folder: RunFolder) -> None:
    entry = FileEntry.of("a", b"").model_dump()
    files = [entry | {"name": f"f{number}"} for number in range(20_000)]
    reseal(folder, MANIFESTS[0], lambda content: content | {"files": files})


@spoiler
@where_it_is
def many_metrics(folder: RunFolder) -> None:
    metrics = dict.fromkeys((f"m{number}" for number in range(100_000)), 0.5)
    reseal(folder, MANIFESTS[1], lambda content: content | {"metrics": metrics})


@spoiler
def many_orphans(folder: RunFolder) -> None:
    for number in range(10, 10_010):
        _place(folder, f"checkpoints/{CheckpointName(number, number)}").mkdir()


@spoiler
@where_it_is
def empty_tensors(folder: RunFolder, count: int) -> None:
    """A file with so many tensors without a number in them."""
    one = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    text = json.dumps({f"t{number}": one for number in range(count)}).encode()
    vouch_for(folder, NEWEST, "model.safetensors", len(text).to_bytes(8, "little") + text)


FIELDS = {
    **dict.fromkeys(
        MANIFESTS,
        (
            *("format", "kind", "created_at", "files", "step", "attempt", "epoch", "metrics"),
            *("journal", "stopped_by", "in_turn", "elapsed_s", "reported", "rows", "input"),
            *("checkpoint", "checkpoint_digest", "num_rows", "samples_seen", "validated"),
        ),
    ),
    "run.json": ("format", "name", "created_at", "config", "pipeline", "datasets", "files", "code"),
    "report.json": ("format", "train", "best", "test_metrics", "evaluations", "predictions", "run"),
    "live.json": ("stage", "attempt", "step", "total_steps", "metrics", "loss", "eta_s", "time"),
    "asked/0001.json": ("config", "pipeline"),
    "lease/0001.json": ("host", "machine", "pid", "process_started", "token"),
    "lease/0001-beat.json": ("counter", "released", "end"),
    "lease/0001-seal.json": ("checkpoints",),
}

KNOWN: dict[str, Spoil] = {
    **{f"{key} is a link": links(key) for key in EVERYTHING},
    "a link to itself": links(f"checkpoints/{NEWEST}", is_chain=True),
    **{f"{key} is a pipe": is_special(key, os.mkfifo) for key in (*MANIFESTS, *DOCUMENTS, *FILES)},
    "a manifest is a device": is_special(MANIFESTS[1], is_device),
    "run.json is a device": is_special("run.json", is_device),
    "a model of no bytes is a pipe": vouches_for_nothing("model.safetensors", os.mkfifo),
    "a model of no bytes is a device": vouches_for_nothing("model.safetensors", is_device),
    "a socket": is_special(f"checkpoints/{NEWEST}/manifest.json", listens),
    **{f"{key} is a folder": is_special(key, os.mkdir) for key in (*MANIFESTS, *DOCUMENTS)},
    **{f"{key} is huge": has_size(key, 2**40) for key in (*MANIFESTS, *DOCUMENTS, *FILES)},
    **{f"{key} is large": has_size(key, MAX_DOCUMENT_BYTES) for key in DOCUMENTS},
    **{f"{key} has a key twice": says_twice(key) for key in (*MANIFESTS, *DOCUMENTS[:4])},
    **{f"{key} is of format 2": says(key, "format", 2) for key in (*MANIFESTS, "run.json")},
    "run.json is deep": has_bytes("run.json", b'{"config": ' + b"[" * 100_000),
    "report.json is deep": has_bytes("report.json", b'{"a": ' + b"[" * 190 + b"]" * 190 + b"}"),
    "a step of 5,000 digits": says_digits(MANIFESTS[1], "step", 5000),
    "a step of 10^300": says(MANIFESTS[1], "step", 10**300),
    "a long time": says(MANIFESTS[1], "created_at", "x" * (MAX_DOCUMENT_BYTES - 10_000)),
    "many files": many_files(),
    "many metrics": many_metrics(),
    "10,000 orphans": many_orphans(),
    "lease 10^6": leases(10**6),
    "lease 10^18 - 1": leases(10**18 - 1),
    "lease 10^18": has_bytes(f"lease/{10**18}.json", b"{}"),
    "a copied checkpoint": copies(f"checkpoints/{BEST}", "checkpoints/step-00000170-a0001"),
    "300,000 empty tensors": empty_tensors(300_000),
    "50,000 empty tensors": empty_tensors(50_000),
    "a tensor file of nothing": vouches("model.safetensors", b""),
    "state.json is deep": vouches("state.json", b"[" * 100_000),
    "a line of nothing": vouches(SEGMENT, b"\n\n"),
    "a line of format 2": vouches(SEGMENT, b'{"step": 6, "time": 1, "metrics": {}, "format": 2}\n'),
    "a line with a key twice": vouches(SEGMENT, b'{"step": 6, "step": 6, "time": 1}\n'),
    "a line of 5,000 digits": vouches(SEGMENT, b'{"step": ' + b"9" * 5000 + b"}\n"),
    "a name with a line break": vouches(SEGMENT, b'{"step": 6, "metrics": {"a\\n\\u001b": "b"}}\n'),
}
"""Each of them ended a command badly once, or is near to what did."""
SECONDS = {"300,000 empty tensors", "50,000 empty tensors", "10,000 orphans"}
"""These keep the commands busy for seconds."""
QUICK = sorted(set(KNOWN) - SECONDS - {"many files", "many metrics", "a long time"})


@st.composite
def spoilers(draw: st.DrawFn, known: list[str]) -> tuple[str, list[Spoil]]:
    """Up to three things that an enemy does to a run, some of them known, and their names."""
    named: list[tuple[str, Spoil]] = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["known", "says", "bytes", "gone"]))
        if kind == "known":
            name = draw(st.sampled_from(known))
            named.append((name, KNOWN[name]))
        elif kind == "says":
            key = draw(st.sampled_from(sorted(FIELDS)))
            field, value = draw(st.sampled_from(FIELDS[key])), draw(VALUES)
            named.append((f"{key} {field}={value!r:.60}", says(key, field, value)))
        elif kind == "bytes":
            key, data = draw(st.sampled_from(EVERYTHING)), draw(st.binary(max_size=60))
            named.append((f"{key} has {data!r}", has_bytes(key, data)))
        else:
            key = draw(st.sampled_from(EVERYTHING))
            named.append((f"{key} is gone", is_gone(key)))
    return "; ".join(name for name, _ in named), [spoil for _, spoil in named]
