"""The raw columns that `prepare` gets in scoring; the error for a missing one names its file."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Self

import numpy.typing as npt

from train_core.datasets.faulty_files import row_at_fault
from train_core.datasets.protocols import Columns
from train_core.errors import DataError, EvertrainError
from train_core.rank.data.prepared import prepare_batch
from train_core.workload import Batch, Workload

_MOST_SHOWN = 40
_log = logging.getLogger(__name__)


class MissingColumnError(DataError, KeyError):
    """A column that the workload asks for is not in the data.

    It is also a KeyError, which a workload may catch if the column is optional.
    """

    # A KeyError shows its message in quotes.
    __str__ = Exception.__str__


class RawColumns(dict[str, npt.NDArray[Any]]):
    """Raw columns by name, of rows from one file or several.

    `files` maps each file's address to its columns; the rows have the columns of all files.
    """

    def __init__(self, columns: Columns, files: Mapping[str, Collection[str]]) -> None:
        super().__init__(columns)
        self.files = files

    def without(self, names: Collection[str]) -> Self:
        """The columns that are not named."""
        kept = {name: array for name, array in self.items() if name not in names}
        return type(self)(kept, self.files)

    def rows(self, start: int, stop: int) -> Self:
        """Some of the rows."""
        return type(self)({name: array[start:stop] for name, array in self.items()}, self.files)

    def __missing__(self, name: str) -> npt.NDArray[Any]:
        raise self.missing(name)

    def missing(self, name: object) -> MissingColumnError:
        """The error for a missing column: it names the file, and the columns that are there."""
        lacking = (file for file, columns in self.files.items() if name not in columns)
        file = next(lacking, next(iter(self.files)))
        there = sorted(self.files[file])
        more = f", … ({len(there)} in all)" if len(there) > _MOST_SHOWN else ""
        return MissingColumnError(
            f"{file} has no column {name!r}, which the workload's prepare asks for: it has "
            f"{', '.join(there[:_MOST_SHOWN]) or 'none'}{more}"
        )


def prepared(workload: Workload[Any], columns: RawColumns, ids: Sequence[str | None] = ()) -> Batch:
    """The raw columns as a batch, prepared as in inference.

    Raises DataError, which names the file, for a column that is missing and for what `prepare`
    refuses in the data; its other errors as they are, with the file, and the row if it is one's,
    noted on them. `ids` are the rows' names.
    """
    known = columns.without(workload.target_columns)
    try:
        return prepare_batch(workload, known, None, lambda row: f"{ids[row]}" if ids else "a row")
    except MissingColumnError:
        raise
    except DataError as error:
        raise DataError(f"{_shown(columns.files)}: {error}") from error
    except KeyError as error:
        # A DataFrame made from the columns raises errors of its own.
        if _comes_from_pandas(error):
            raise known.missing(error.args[0]) from error
        _note_place(error, workload, known, ids)
        raise
    except Exception as error:
        _note_place(error, workload, known, ids)
        raise


def _note_place(
    error: Exception, workload: Workload[Any], known: RawColumns, ids: Sequence[str | None]
) -> None:
    def prepare_one(row: Columns) -> Batch:
        return workload.prepare(RawColumns(row, known.files), None)

    row = row_at_fault(prepare_one, known)
    if row is not None and row < len(ids):
        error.add_note(f"in row {ids[row]}")
    error.add_note(f"in {_shown(known.files)}")


def _shown(files: Collection[str]) -> str:
    first, *rest = files
    return f"{first} (or one of {len(rest)} others)" if rest else first


def try_prepare(workload: Workload[Any], columns: RawColumns) -> None:
    """Raise DataError if `prepare` refuses such data.

    Other errors of `prepare` are left to the workers, which report them with a traceback.
    """
    try:
        prepared(workload, columns)
    except EvertrainError:
        raise
    except Exception:  # noqa: BLE001 (the user's own code)
        _log.debug("prepare fails with the first rows", exc_info=True)


def _comes_from_pandas(error: KeyError) -> bool:
    place = error.__traceback__
    while place is not None and place.tb_next is not None:
        place = place.tb_next
    module = place.tb_frame.f_globals.get("__name__", "") if place else ""
    return str(module).partition(".")[0] == "pandas"
