"""The files of a workload's sources: listed once when a run begins, and read as recorded later.

Files that arrive in a folder later are not read.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from fsspec.core import has_magic
from fsspec.utils import glob_translate

from train_core.datasets.files import DataFile, digest_of_file, file_states, is_data, store_of
from train_core.errors import DataError, HiddenLoginError, WorkloadError
from train_core.policy.logins import has_hidden_login, hide_logins, with_login_of
from train_core.storage.objects.store import DataStore
from train_core.storage.records.data_files import FileList, FileRecord, SourceFiles

_NUM_THREADS = 8


class PinnedFiles:
    """The files of a workload's sources, as they were when they were recorded."""

    def __init__(self, recorded: FileList) -> None:
        self.recorded = recorded
        self._checked: dict[str, tuple[DataFile, ...]] = {}

    @classmethod
    def listed(cls, sources: Mapping[str, str], earlier: FileList | None = None) -> PinnedFiles:
        """The files that are there now.

        Digests of files that `earlier` has in the same version are taken from it, but not where
        versions are times, as on a disk. Raises DataError for a source that has no files.
        """
        known = _known(earlier) if earlier else {}
        made = cls(FileList(sources={n: _list_source(n, sources[n], known) for n in sources}))
        made._checked = {name: _data_files(one) for name, one in made.recorded.sources.items()}
        return made

    def files(self, name: str) -> tuple[DataFile, ...]:
        """The files of one source, sorted.

        Raises DataError if one is not as it was recorded, HiddenLoginError if the source cannot be
        reached without a login that nobody gave.
        """
        if name not in self._checked:
            if name not in self.recorded.sources:
                known = ", ".join(self.recorded.sources) or "none"
                raise WorkloadError(f"no source {name!r} is recorded: sources() named {known}")
            source = self.recorded.sources[name]
            if has_hidden_login(source.folder):
                raise HiddenLoginError(f"the URL of source {name!r} ({source.url})")
            self._checked[name] = _checked(source)
        return self._checked[name]

    def with_logins(self, sources: Mapping[str, str]) -> PinnedFiles:
        """The same files, at addresses with the logins of `sources`, which no record has."""
        return PinnedFiles(
            FileList(
                sources={
                    name: one.model_copy(
                        update={
                            "url": with_login_of(one.url, sources.get(name, "")),
                            "folder": with_login_of(one.folder, sources.get(name, "")),
                        }
                    )
                    for name, one in self.recorded.sources.items()
                }
            )
        )


class NoFiles(PinnedFiles):
    """Of a model that is served, or scored as if it were: it has no file of its training."""

    def __init__(self) -> None:
        super().__init__(FileList(sources={}))

    def files(self, name: str) -> tuple[DataFile, ...]:
        """Raise WorkloadError."""
        raise WorkloadError(
            f"files({name!r}) is called where a model predicts, which has no files of its "
            "training: return from fit() what prepare() and model() need of them, and read it "
            "from self.fitted"
        )


def split_glob(url: str) -> tuple[str, str]:
    """The folder above all that the URL matches, and the rest, a glob pattern; empty: none."""
    if not has_magic(url):
        return url, ""
    scheme, separator, path = url.rpartition("://")
    parts = path.split("/")
    first = next(number for number, part in enumerate(parts) if has_magic(part))
    folder = "/".join(parts[:first])
    if not folder:
        folder = "/" if path.startswith("/") else "" if separator else "."
    return f"{scheme}{separator}{folder}", "/".join(parts[first:])


def _list_source(name: str, url: str, known: Mapping[tuple[str, int, str], str]) -> SourceFiles:
    """List and hash the files at a file, a folder or a glob."""
    # On a disk, a name may hold what is a wildcard elsewhere.
    base, pattern = (url, "") if os.path.exists(url) else split_glob(url)
    store, key = DataStore(base), ""
    found = file_states(store, key, _depth(pattern) if pattern else 0)
    if set(found) == {""}:
        # It is a file.
        store, key = store_of(store.url)
        found = {key: found[""]}
    matches: Callable[[str], Any] = (
        re.compile(glob_translate(pattern)).match if pattern else is_data
    )
    names = sorted(n for n in found if n == key or (matches(n) and is_data(n)))
    if not names:
        raise DataError(
            f"source {name!r}: nothing is at {hide_logins(url)}: give the URL of a file, of a "
            "folder with files or of a glob that matches some"
        )

    def record(file: str) -> FileRecord:
        size_bytes, version, is_of_content = found[file]
        address = store.uri(file)
        recorded = known.get((hide_logins(address), size_bytes, version))
        digest = recorded if is_of_content else None
        if digest is None:
            digest, there = digest_of_file(address, size_bytes, version)
            if there != size_bytes:
                raise DataError(
                    f"{hide_logins(address)} is being written: it had {size_bytes} bytes, and "
                    f"then {there}. Write files under another name and rename them"
                )
        return FileRecord(name=file, size_bytes=size_bytes, digest=digest, version=version)

    with ThreadPoolExecutor(_NUM_THREADS, "hash") as threads:
        files = tuple(threads.map(record, names))
    at = store.uri(pattern) if pattern else store.uri(key)
    return SourceFiles(url=at, folder=store.url, files=files)


def _known(earlier: FileList) -> dict[tuple[str, int, str], str]:
    """The digests of files by address, size and version, as recorded."""
    return {
        (posixpath.join(one.folder, file.name), file.size_bytes, file.version): file.digest
        for one in earlier.sources.values()
        for file in one.files
    }


def _checked(source: SourceFiles) -> tuple[DataFile, ...]:
    """The recorded files, each of them as it was recorded. Raises DataError otherwise."""
    files, names = _data_files(source), [file.name for file in source.files]
    store = DataStore(source.folder)
    # The neighbours of a single file need not be listed.
    key, depth = (names[0], 0) if len(names) == 1 else ("", max(map(_depth, names)))
    found = file_states(store, key, depth)
    with ThreadPoolExecutor(_NUM_THREADS, "check") as threads:
        list(threads.map(DataFile.check, files, map(found.get, names)))
    return files


def _data_files(source: SourceFiles) -> tuple[DataFile, ...]:
    return tuple(
        DataFile(
            url=posixpath.join(source.folder, file.name),
            size_bytes=file.size_bytes,
            digest=file.digest,
            version=file.version,
        )
        for file in source.files
    )


def _depth(name: str) -> int:
    """How many levels below its folder the name is; 0, no bound, for a pattern with `**`."""
    return 0 if "**" in name else name.count("/") + 1
