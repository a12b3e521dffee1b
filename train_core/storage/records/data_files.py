"""What a run records of the files that its workload names.

run.json has the sum of each source; the list of its files is a document of its own, `data/*.json`,
which run.json vouches for: there may be millions of files, and run.json is read by every command.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from pydantic import BaseModel, ConfigDict, Field

from train_core.policy.logins import hide_logins
from train_core.storage.objects.digest_algorithm import new_digest
from train_core.storage.objects.store import Store
from train_core.storage.records.documents import FORMAT, Count, parse_document
from train_core.storage.records.manifest import FileEntry
from train_core.storage.records.names import DATA
from train_core.storage.records.verified_files import read_file

_FILES_JSON: Final = "files.json"


class SourceRecord(BaseModel):
    """One source of data, for run.json."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(description="The file, folder or glob that the workload named; no login.")
    num_files: Count
    size_bytes: Count
    digest: str = Field(
        description="BLAKE3 over the files' names and digests: the same wherever the folder is."
    )


class FileRecord(BaseModel):
    """One file of a source."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str = Field(description="Below the source's folder.")
    size_bytes: Count
    digest: str = Field(description="BLAKE3 of its bytes.")
    version: str = Field(
        description="What tells cheaply that it may have changed: its time on a disk in ns, its "
        "ETag or the like elsewhere; empty where the storage tells none."
    )


class SourceFiles(BaseModel):
    """The files of one source, sorted by name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(description="What the workload named, absolute.")
    folder: str = Field(description="The folder that all its files are below.")
    files: tuple[FileRecord, ...]

    def summary(self) -> SourceRecord:
        """The source in short."""
        digest = new_digest()
        for file in self.files:
            digest.update(f"{file.digest} {file.name}\n".encode())
        return SourceRecord(
            url=hide_logins(self.url),
            num_files=len(self.files),
            size_bytes=sum(file.size_bytes for file in self.files),
            digest=digest.hexdigest(),
        )


class FileList(BaseModel):
    """`data/*.json`: the files of every source."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    format: Literal[1] = FORMAT
    sources: Mapping[str, SourceFiles]

    def to_json(self) -> bytes:
        """The document's bytes as they are stored: no login is in them."""
        shown = {
            name: source.model_copy(
                update={"url": hide_logins(source.url), "folder": hide_logins(source.folder)}
            )
            for name, source in self.sources.items()
        }
        return (FileList(sources=shown).model_dump_json(indent=1) + "\n").encode()

    def entry(self) -> FileEntry:
        """What run.json says of the document. Its name has its digest in it."""
        data = self.to_json()
        unnamed = FileEntry.of(_FILES_JSON, data)
        return unnamed.model_copy(update={"name": f"{unnamed.digest[:16]}-{_FILES_JSON}"})


def key_of(entry: FileEntry) -> str:
    """The document's key in the run folder."""
    return f"{DATA}/{entry.name}"


def read_file_list(store: Store, entry: FileEntry) -> FileList:
    """The document.

    Raises CheckpointError if it is not what run.json vouches for, and ConfigError if a newer
    evertrain wrote it.
    """
    data = bytes(read_file(store, key_of(entry), entry))
    return parse_document(FileList, data, store.uri(key_of(entry)), "a list of data files")
