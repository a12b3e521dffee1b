"""The data at fault: which file, and which row, made the code that reads it raise.

The libraries that read files are given bytes, and name none: pyarrow says `'<Buffer>'`. So whatever
reads a user's data does it inside of `reading` or `naming`.
"""

from __future__ import annotations

import io
import logging
import os
import re
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import IO, TYPE_CHECKING, Any

import numpy.typing as npt

from train_core.datasets.files import DataFile, store_of
from train_core.errors import DataError, EvertrainError, line_of_users_code, words_of
from train_core.policy.logins import hide_logins
from train_core.transient_errors import passes_by_itself

if TYPE_CHECKING:
    import pyarrow as pa

_log = logging.getLogger(__name__)
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")
_TABLE_SUFFIXES = (".csv", ".tsv", ".txt", ".json", ".jsonl")
_MOST_READ_BYTES = 2**31
"""How much is read again to find the file at fault."""
_MOST_FILES = 100
"""How many files are opened to find it: those of a table on a distant storage may be thousands."""
_MOST_ROWS = 4096
"""How many rows are prepared again, one by one, to find the one at fault."""
_MOST_CHARS = 4096
# A value that a conversion refuses, as Python, numpy and pandas name it.
_REFUSED_VALUE = re.compile(
    r"(?:could not convert string|[Uu]nable to parse string)[^'\"]*['\"](.+?)['\"]"
)
_READERS = re.compile(
    r"/(pyarrow|PIL|pandas/io|fastparquet|polars|h5py|imageio)/|/(gzip|zipfile)\.py$"
)


@contextmanager
def naming(uri: str, kind: str) -> Iterator[None]:
    """Raise whatever a library refuses in a file as a DataError that names the file.

    What says nothing of the file is raised as it is: a lack of memory, and what passes by itself.
    """
    try:
        yield
    except EvertrainError:
        raise
    # PIL raises SyntaxError and pyarrow classes of its own, beside OSError and ValueError.
    except Exception as error:
        if isinstance(error, MemoryError) or passes_by_itself(error):
            raise
        raise DataError(
            f"{hide_logins(uri)} is not a readable {kind}: {words_of(error)}. Bring the whole "
            "file, or take it away"
        ) from error


@contextmanager
def reading(
    what: Callable[[], str], files: Callable[[], Iterable[DataFile]] = tuple
) -> Iterator[None]:
    """Say in an error of the user's code what it read, and which file is at fault.

    `what` says what was read; it is called for an error only, as samples are read in each step.
    `files` gives the files that the code may have read. Raises DataError if one of them is damaged,
    or unlike the others; other errors as they are, with what was read noted on them.
    """
    try:
        yield
    except EvertrainError:
        raise
    except Exception as error:
        try:
            _explain(files, error)
        except DataError:
            raise
        except Exception as fault:  # noqa: BLE001 (whatever it is, the user's error counts)
            _log.debug("the file at fault was not looked for to the end: %s", words_of(fault))
        error.add_note(f"in {what()}")
        raise


def row_at_fault(
    prepare: Callable[[Mapping[str, npt.NDArray[Any]]], object],
    columns: Mapping[str, npt.NDArray[Any]],
) -> int | None:
    """The first row that `prepare` refuses alone, too; None if the fault is not one row's."""

    def refuses(row: int) -> bool:
        try:
            prepare({name: array[row : row + 1] for name, array in columns.items()})
        except Exception:  # noqa: BLE001 (the user's own code)
            return True
        return False

    num_rows = min(map(len, columns.values()), default=0)
    if not 1 < num_rows <= _MOST_ROWS:
        return None
    found = next((row for row in range(num_rows) if refuses(row)), None)
    # A mistake in the code refuses every row.
    return None if found is None or (found == 0 and refuses(num_rows - 1)) else found


def difference(schema: pa.Schema, usual: pa.Schema) -> str:
    """The first column that is another one than in the usual schema, in a few words."""
    for name in usual.names:
        if name not in schema.names:
            return f"it has no column {name!r}"
        here, there = schema.field(name).type, usual.field(name).type
        if here != there:
            return f"its column {name!r} is {here}, and {there} there"
    more = next((name for name in schema.names if name not in usual.names), None)
    return "" if more is None else f"it has a column {more!r}"


def _explain(files: Callable[[], Iterable[DataFile]], error: Exception) -> None:
    """Raise DataError for the file at fault; else note on the error what is known."""
    urls = list(dict.fromkeys(_named_in(error.__traceback__)))
    named = urls[:1]
    with suppress(EvertrainError):
        urls += [file.url for file in files() if file.url not in urls]
    line = line_of_users_code("".join(traceback.format_exception(error)))
    at = f" ({line})" if line else ""
    if _comes_from_reader(error) and not passes_by_itself(error):
        left_bytes = _MOST_READ_BYTES
        for url in urls[:_MOST_FILES]:
            # What cannot be opened is not what the error is about.
            with suppress(OSError):
                try:
                    left_bytes -= _check_whole(url, left_bytes)
                except DataError as fault:
                    raise DataError(f"{fault}{at}") from error
        if odd := _odd_one(urls[:_MOST_FILES]):
            mend = "Bring the files to one schema"
            raise DataError(f"{odd}: {words_of(error)}{at}. {mend}") from error
    if (found := _REFUSED_VALUE.search(str(error))) and (
        place := _place_of(found[1], urls[:_MOST_FILES])
    ):
        error.add_note(place)
    elif url := next(iter(named or urls if len(urls) == 1 else named), ""):
        error.add_note(f"in {hide_logins(url)}")


def _comes_from_reader(error: Exception) -> bool:
    """Whether a library that reads files raised it."""
    if type(error).__module__.partition(".")[0] in ("pyarrow", "PIL", "zlib", "gzip", "zipfile"):
        return True
    frames = traceback.extract_tb(error.__traceback__)
    return any(_READERS.search(frame.filename) for frame in frames)


def _named_in(place: TracebackType | None) -> Iterator[str]:
    """The files that the innermost functions had in their hands: variables that name one."""
    frames = []
    while place is not None:
        frames.append(place.tb_frame)
        place = place.tb_next
    for frame in reversed(frames):
        if "/train_core/" in frame.f_code.co_filename:
            return
        for value in list(frame.f_locals.values()):
            if url := _file_of(value):
                yield url


def _file_of(value: object) -> str:
    """The address of the file that a variable is, or names; empty if it does not."""
    if isinstance(value, DataFile):
        return value.url
    if type(value).__module__.startswith("PIL."):
        # An image that was opened from a file has that, and no name of its own.
        value = getattr(value, "filename", "") or getattr(value, "fp", None)
    if isinstance(value, io.IOBase):
        value = next((getattr(value, n) for n in _NAMES if getattr(value, n, None)), None)
    if isinstance(value, str | os.PathLike):
        path = os.fspath(value)
        if isinstance(path, str) and len(path) < _MOST_CHARS:
            with suppress(OSError, ValueError):
                return os.path.abspath(path) if os.path.isfile(path) else ""
    return ""


_NAMES = ("full_name", "path", "name")
"""The attributes by which open files name themselves."""


def _opened(url: str) -> IO[bytes]:
    store, key = store_of(url)
    opened: IO[bytes] = store.fs.open(store.path(key), "rb")
    return opened


def _check_whole(url: str, left_bytes: int) -> int:
    """Raise DataError if the file cannot be read as what its name says; the bytes that were read.

    Of a file of more than `left_bytes` only the head is read.
    """
    name = url.lower()
    if not name.endswith((".parquet", ".gz", *IMAGE_SUFFIXES)):
        return 0
    with _opened(url) as file:
        size_bytes = file.seek(0, io.SEEK_END)
        file.seek(0)
        is_whole = size_bytes <= left_bytes
        if name.endswith(".parquet"):
            _check_parquet(url, file, is_whole=is_whole)
        elif is_whole and name.endswith(".gz"):
            import gzip

            with naming(url, "gzip file"), gzip.open(file) as packed:
                while packed.read(2**20):
                    pass
        elif is_whole:
            from PIL import Image

            with naming(url, "image"):
                Image.open(file).load()
    return size_bytes if is_whole else 0


def _check_parquet(url: str, file: IO[bytes], *, is_whole: bool) -> None:
    import pyarrow.parquet as pq

    with naming(url, "Parquet file"):
        opened = pq.ParquetFile(file)
    if is_whole:
        row = 0
        for group in range(opened.num_row_groups):
            num_rows = opened.metadata.row_group(group).num_rows
            with naming(f"rows {row} to {row + num_rows - 1} of {url}", "part of a Parquet file"):
                opened.read_row_group(group)
            row += num_rows


def _odd_one(urls: Iterable[str]) -> str:
    """The first Parquet file whose columns are not those of most, and how it differs."""
    import pyarrow.parquet as pq

    schemas = {}
    for url in (url for url in urls if url.lower().endswith(".parquet")):
        # What cannot be read is not what the error is about.
        with suppress(Exception), _opened(url) as file:
            schemas[url] = pq.read_schema(file).remove_metadata()
    if len(schemas) > 1:
        usual = Counter(schemas.values()).most_common(1)[0][0]
        first = next(url for url, schema in schemas.items() if schema == usual)
        for url, schema in schemas.items():
            if how := difference(schema, usual):
                return f"{hide_logins(url)} is not like {hide_logins(first)}: {how}"
    return ""


def _place_of(value: str, urls: Iterable[str]) -> str:
    """The first line of a text file that has the value, as `line 7 of FILE`."""
    left_bytes = _MOST_READ_BYTES
    for url in (url for url in urls if url.lower().endswith(_TABLE_SUFFIXES)):
        with suppress(OSError), _opened(url) as file:
            for number, line in enumerate(file, 1):
                left_bytes -= len(line)
                if left_bytes < 0:
                    return ""
                if value.encode() in line:
                    return f"in line {number} of {hide_logins(url)}"
    return ""
