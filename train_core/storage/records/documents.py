"""The small JSON objects of a run folder, read at one door: bounded, checked, never by a link."""

from __future__ import annotations

import json
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, JsonValue, RootModel, ValidationError

from train_core.errors import CheckpointError, ConfigError
from train_core.storage.objects.digests import digest_of
from train_core.storage.objects.store import Store

FORMAT: Final = 1
MAX_DOCUMENT_BYTES = 16 * 2**20

D = TypeVar("D", bound=BaseModel)


class _Object(RootModel[dict[str, JsonValue]]):
    """Any JSON object."""

    model_config = ConfigDict(frozen=True)


def read_small(store: Store, key: str) -> bytes:
    """The object's bytes.

    Raises FileNotFoundError if there is none, and CheckpointError if it is too large to be a
    document, or reached by a symbolic link, which only somebody else can have made.
    """
    if link := store.link_on_the_way(key):
        raise CheckpointError(
            f"{store.uri(key)} is reached by the link {link}; evertrain makes none"
        )
    size = store.size_bytes(key)
    if size > MAX_DOCUMENT_BYTES:
        raise CheckpointError(
            f"{store.uri(key)}: {size} bytes; such a file has at most {MAX_DOCUMENT_BYTES}"
        )
    return store.read(key)


def read_document(
    store: Store, model: type[D], key: str, what: str, *, has_checksum: bool = False
) -> tuple[D, bytes]:
    """The object at `key` as a `model`, and its bytes. `what` names its kind in errors.

    Raises FileNotFoundError if there is none, CheckpointError if it is not `what`, or if it was
    written by `with_checksum` and altered, and ConfigError if a newer evertrain wrote it: such a
    one is not damaged.
    """
    data = read_small(store, key)
    uri = store.uri(key)
    # First: a flipped bit must not make it one of a newer format.
    content = _verified(data, uri, what) if has_checksum else data
    _check_format(uri, content)
    try:
        return model.model_validate_json(content), data
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "".join(f"{part}." for part in first["loc"]).rstrip(".")
        message = f"{place}: {first['msg']}" if place else first["msg"]
        raise CheckpointError(f"{uri}: not {what}: {message}") from error


def with_checksum(document: BaseModel) -> bytes:
    """The document's JSON, whose last entry is the digest of all that is before it."""
    content = document.model_dump_json(indent=1).removesuffix("\n}").encode()
    return content + _checksum(content)


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


def _check_format(uri: str, data: bytes) -> None:
    """Raise ConfigError if a newer evertrain wrote the file."""
    try:
        found = json.loads(data).get("format")
    except (ValueError, AttributeError, RecursionError):
        return
    if isinstance(found, int) and found > FORMAT:
        raise ConfigError(
            f"{uri} has format {found}, this evertrain reads up to {FORMAT}: use the version "
            "that wrote it, or a newer one"
        )
