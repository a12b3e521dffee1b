"""The small JSON objects of a run folder: one way to read them, which trusts none.

A document is read as a regular file that no link leads to, as far as its kind may be long; its JSON
is nested at most 200 levels deep and has no key twice; and it is its model's, by strict types:
`true` and "1" are no numbers. docs/decisions/018-untrusted-documents.md gives the reasons.
"""

from __future__ import annotations

import json
from collections import Counter
from typing import Annotated, Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, JsonValue, RootModel, ValidationError

from train_core.errors import CheckpointError, ConfigError
from train_core.storage.objects.digest_algorithm import digest_of
from train_core.storage.objects.store import Store
from train_core.text.shown_text import escaped

FORMAT: Final = 1
MAX_DOCUMENT_BYTES: Final = 4 * 2**20
"""Of a manifest, run.json or a report: 10,000 files, or a large configuration."""
SMALL_BYTES: Final = 64 * 2**10
"""Of what has a few lines, such as a lease."""
MAX_ENTRIES: Final = 10_000
"""Of files, or of metrics, in one document."""
LARGEST_NUMBER: Final = 10**18 - 1
"""Of steps, attempts, bytes and rows."""

MAX_TEXT: Final = 1024
"""Characters of a name, a reason, a time."""

Text = Annotated[str, Field(max_length=MAX_TEXT)]
Count = Annotated[int, Field(ge=0, le=LARGEST_NUMBER)]

D = TypeVar("D", bound=BaseModel)


class DuplicateKeyError(ValueError):
    """An object of JSON has a key twice: programs disagree which of the two counts."""


class _Object(RootModel[dict[str, JsonValue]]):
    """Any JSON object."""

    model_config = ConfigDict(frozen=True)


def read_small(store: Store, key: str, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
    """The object's bytes.

    Raises FileNotFoundError if there is none, and CheckpointError if it is too large to be such a
    document, no regular file, or reached by a symbolic link.
    """
    try:
        return store.read(key, max_bytes)
    except FileNotFoundError as error:
        if isinstance(error.__cause__, IsADirectoryError):
            raise CheckpointError(f"{store.uri(key)} is a folder and no file") from error
        raise


def read_document(
    store: Store,
    model: type[D],
    key: str,
    what: str,
    *,
    has_checksum: bool = False,
    max_bytes: int = MAX_DOCUMENT_BYTES,
) -> tuple[D, bytes]:
    """The object at `key` as a `model`, and its bytes. `what` names its kind in errors.

    Raises FileNotFoundError if there is none, CheckpointError if it is not `what`, or if it was
    written by `with_checksum` and altered, and ConfigError if a newer evertrain wrote it: such a
    one is not damaged.
    """
    uri = store.uri(key)

    def read() -> tuple[D, bytes]:
        data = read_small(store, key, max_bytes)
        # First: a flipped bit must not make it one of a newer format.
        content = _verified(data, uri, what) if has_checksum else data
        return parse_document(model, content, uri, what), data

    return store.verified(key, read)


def parse_document(model: type[D], content: bytes, uri: str, what: str) -> D:
    """The document as a `model`. Raises CheckpointError and ConfigError as `read_document`."""
    _check_format(parse_json(content, f"{uri}: not {what}"), uri, what)
    return _validated(model, content, uri, what)


def parse_part(model: type[D], content: bytes, uri: str, what: str) -> D:
    """A part of a document, as a `model`: it has no format of its own. Raises CheckpointError."""
    parse_json(content, f"{uri}: not {what}")
    return _validated(model, content, uri, what)


def _validated(model: type[D], content: bytes, uri: str, what: str) -> D:
    try:
        return model.model_validate_json(content, strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "".join(f"{part}." for part in first["loc"]).rstrip(".")
        message = f"{escaped(place)}: {first['msg']}" if place else first["msg"]
        raise CheckpointError(f"{uri}: not {what}: {message}") from error


def parse_json(content: bytes | memoryview, refusal: str) -> Any:
    """The JSON value. Raises CheckpointError, which begins so, if it is none or has a key twice."""
    try:
        # Not its bytes: json would copy them once more, to look for other encodings.
        return json.loads(str(content, "utf-8"), object_pairs_hook=unique_keys)
    except RecursionError:
        raise CheckpointError(f"{refusal}: it is nested too deeply") from None
    except (UnicodeDecodeError, json.JSONDecodeError, DuplicateKeyError) as error:
        raise CheckpointError(f"{refusal}: {error}") from error
    except ValueError as error:
        # Of Python's int, whose message tells how to change Python.
        raise CheckpointError(f"{refusal}: a number in it has too many digits") from error


def unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of JSON, for `json`'s `object_pairs_hook`. Raises DuplicateKeyError."""
    found = dict(pairs)
    if len(found) < len(pairs):
        counted = Counter(name for name, _ in pairs)
        raise DuplicateKeyError(f"the key {counted.most_common(1)[0][0]!r} is there twice")
    return found


def with_checksum(document: BaseModel) -> bytes:
    """The document's JSON, whose last entry is the digest of all that is before it.

    Raises ConfigError if it would be too large to be read again.
    """
    content = document.model_dump_json(indent=1).removesuffix("\n}").encode()
    data = content + _checksum(content)
    if len(data) > MAX_DOCUMENT_BYTES:
        raise ConfigError(
            f"a document of {len(data)} bytes would not be read again, at most "
            f"{MAX_DOCUMENT_BYTES} are: give it fewer files or metrics, or shorter names"
        )
    return data


def _checksum(content: bytes) -> bytes:
    return f',\n "digest": "{digest_of(content)}"\n}}\n'.encode()


def _verified(data: bytes, uri: str, what: str) -> bytes:
    content = data[: -len(_checksum(b""))]
    if data != content + _checksum(content):
        raise CheckpointError(
            f"{uri}: not {what}: it does not end with its own digest, so it was altered"
        )
    return content + b"}"


def read_object(store: Store, key: str) -> dict[str, Any]:
    """The JSON object at `key`. Raises what `read_document` does."""
    return read_document(store, _Object, key, "a JSON object")[0].root


def _check_format(document: Any, uri: str, what: str) -> None:
    """Raise ConfigError if a newer evertrain wrote the file."""
    found = document.get("format") if isinstance(document, dict) else None
    if isinstance(found, (bool, float)):
        # Equal to a number, which is all that a model compares.
        raise CheckpointError(f"{uri}: not {what}: format: {found} is no number of a format")
    if isinstance(found, int) and found > FORMAT:
        raise ConfigError(
            f"{uri} has format {found}, this evertrain reads up to {FORMAT}: use the version "
            "that wrote it, or a newer one"
        )
