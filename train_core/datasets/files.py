"""The files that a workload names: listed once when a run begins, given as recorded ever after.

What arrives in a folder meanwhile is not read. What was recorded and is missing or changed ends
with a DataError. The look at a file is cheap: a listing tells sizes and versions, and only a file
whose version is another one is read for its digest.
"""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from typing import IO, Any, NamedTuple

from fsspec.core import has_magic
from fsspec.utils import glob_translate
from pydantic import BaseModel, ConfigDict

from train_core.errors import DataError, HiddenLoginError, WorkloadError
from train_core.policy.logins import has_hidden_login, hide_logins, with_login_of
from train_core.storage.objects.digests import new_digest
from train_core.storage.objects.store import Store
from train_core.storage.records.data_files import FileList, FileRecord, SourceFiles

_NUM_THREADS = 8
# Names of a file's version in what fsspec's filesystems tell of it, the best first: those that
# change with the content, and times, which two contents may share.
_OF_CONTENT = ("ETag", "etag", "md5Hash", "generation", "content_md5")
_TIMES = ("LastModified", "last_modified", "updated", "mtime", "created")
_MEND = "bring it back as it was, or start a run under another name"


class Found(NamedTuple):
    """What a storage tells of a file without reading it."""

    size_bytes: int
    version: str
    """What tells that it may have changed; empty: nothing does."""
    is_of_content: bool
    """Whether another content always has another version."""


class DataFile(BaseModel):
    """A file of a workload's data, as the run recorded it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str
    """Its address; on a disk its absolute path."""
    size_bytes: int
    digest: str
    """BLAKE3 of its bytes."""
    version: str
    """What tells cheaply that it may have changed: its time on a disk, its ETag elsewhere."""

    def read(self) -> bytes:
        """All its bytes. Raises DataError if they are not what was recorded."""
        store, key = _store_of(self.url)
        try:
            data, digest = store.load(key, self.size_bytes)
        except FileNotFoundError:
            raise self.missing() from None
        if digest != self.digest:
            raise self.changed(f"its digest is {digest or 'that of another size'}")
        return bytes(data)

    def open(self) -> IO[bytes]:
        """The file opened for reading, for pyarrow and its kin, which read parts of it.

        Raises DataError if the file is not what was recorded. What is read is not verified again.
        """
        store, key = _store_of(self.url)
        self.check(_look(store, key).get(key))
        opened: IO[bytes] = store.fs.open(store.path(key), "rb")
        return opened

    def check(self, found: Found | None) -> None:
        """Raise DataError if the file, as it was found, is not what was recorded.

        It is read only if its version is another one, or none is told.
        """
        if found is None:
            raise self.missing()
        size_bytes, version, _ = found
        if size_bytes != self.size_bytes:
            raise self.changed(f"it has {size_bytes} bytes")
        if version and version == self.version:
            return
        digest, _ = _digest_of(self.url, size_bytes, version)
        if digest != self.digest:
            raise self.changed(f"its digest is {digest}")

    def missing(self) -> DataError:
        """The error that the file is not there."""
        return DataError(f"{hide_logins(self.url)} is missing, {self._recorded()}: {_MEND}")

    def changed(self, there: str) -> DataError:
        """The error that another file is there."""
        return DataError(
            f"{hide_logins(self.url)} is not the file that was recorded: {there}, "
            f"{self._recorded()}: {_MEND}"
        )

    def _recorded(self) -> str:
        return f"the run recorded {self.size_bytes} bytes with digest {self.digest}"


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


def is_data(name: str) -> bool:
    """Whether a file below a source's folder is data: no part of its name begins with . or _.

    Such are the marks and the temporary files of those who write: `_SUCCESS`, `.tmp-1`.
    """
    return not any(part.startswith((".", "_")) for part in name.split("/"))


def _list_source(name: str, url: str, known: Mapping[tuple[str, int, str], str]) -> SourceFiles:
    """List and hash the files at a file, a folder or a glob."""
    # On a disk, a name may hold what is a wildcard elsewhere.
    base, pattern = (url, "") if os.path.exists(url) else split_glob(url)
    store, key = Store(base), ""
    found = _look(store, key, _depth(pattern) if pattern else 0)
    if set(found) == {""}:
        # It is a file.
        store, key = _store_of(store.url)
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
            digest, there = _digest_of(address, size_bytes, version)
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
    store = Store(source.folder)
    # Whatever else is beside a single file need not be listed.
    key, depth = (names[0], 0) if len(names) == 1 else ("", max(map(_depth, names)))
    found = _look(store, key, depth)
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


def state_of(url: str) -> str:
    """What tells one state of the file at `url`, or of the data below that folder, from another.

    Nothing is read. Empty where the storage tells no versions.
    """
    found = {name: told for name, told in _look(Store(url), "").items() if is_data(name)}
    if not all(version for _, version, _ in found.values()):
        return ""
    digest = new_digest()
    for name, (size_bytes, version, _) in sorted(found.items()):
        digest.update(f"{size_bytes} {version} {name}\n".encode())
    return digest.hexdigest()


def _store_of(url: str) -> tuple[Store, str]:
    """The folder of a file, and the file's key in it."""
    folder, _, key = url.rpartition("/")
    return Store(folder or "/"), key


def _look(store: Store, key: str, max_depth: int = 0) -> dict[str, Found]:
    """What is told of the file at `key`, or of each below it, by key; empty if none is."""
    found = {}
    with suppress(FileNotFoundError):
        for name, info in store.tree(key, max_depth).items():
            version = _version(store, name, info)
            if version is not None:
                is_of_content = any(info.get(told) for told in _OF_CONTENT)
                found[name] = Found(int(info["size"]), version, is_of_content)
    return found


def _depth(name: str) -> int:
    """How many levels below its folder the name is; 0 for a pattern that says any number."""
    return 0 if "**" in name else name.count("/") + 1


def _version(store: Store, key: str, info: Mapping[str, Any]) -> str | None:
    """What tells that the file may have changed; empty: nothing does; None: it is gone."""
    if store.is_local:
        try:
            # fsspec tells the time as a float, which has no nanoseconds.
            return str(os.stat(store.path(key)).st_mtime_ns)
        except FileNotFoundError:
            return None
    told = next((info[name] for name in (*_OF_CONTENT, *_TIMES) if info.get(name)), "")
    return str(told).strip('"')


def _digest_of(url: str, size_bytes: int, version: str) -> tuple[str, int]:
    """The digest and the size of what is there now; not read again while its version is this."""
    return (_known_digest if version else _known_digest.__wrapped__)(url, size_bytes, version)


@lru_cache(maxsize=2**16)
def _known_digest(url: str, size_bytes: int, version: str) -> tuple[str, int]:  # noqa: ARG001 (keys)
    store, key = _store_of(url)
    digest, there = new_digest(), 0
    for chunk in store.chunks(key):
        digest.update(chunk)
        there += len(chunk)
    return digest.hexdigest(), there
