"""What a training function reports and returns, made plain: numbers, texts, and JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

from train_core.storage.records.documents import LARGEST_NUMBER, SMALL_BYTES

_FEW = 10
_MOST_LEVELS = 20
Numbers = dict[str, float]
Texts = dict[str, str]
LONGEST_TEXT = 1000
"""In characters. What is longer is cut: the journal is for figures."""


def numbers_and_texts(metrics: Mapping[Any, Any]) -> tuple[Numbers, Texts]:
    """The metrics by name; those of a nested dict are called `outer/inner`, as Ray calls them.

    A scalar of numpy or torch counts as the number that it holds; what is neither a number nor a
    text counts as the text that Python shows of it.
    """
    numbers, texts = {}, {}
    for name, value in _flat(metrics):
        if isinstance(value, (bool, int, float)):
            numbers[name] = _as_float(value)
        elif value is not None:
            texts[name] = (value if isinstance(value, str) else repr(value))[:LONGEST_TEXT]
    return numbers, texts


def plain(value: Any) -> Any:
    """The value as plain Python objects, which another process can read without its libraries.

    What is no Unicode in a text, as in the name of a file, becomes an escape (backslash, `udce9`).
    """
    if isinstance(value, Mapping):
        return {_unicode(str(key)): plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(one) for one in value]
    if value is None or type(value) in (bool, int, float):
        return value
    if callable(unwrap := getattr(value, "tolist", None)):
        # Tensors and arrays have it, and so have numpy's scalars. A tensor of one number gives it.
        return plain(unwrap())
    # Of subclasses, as enums may be.
    if isinstance(value, str):
        return _unicode(str.__str__(value))
    for kind in (int, float):
        if isinstance(value, kind):
            return kind(value)
    return _unicode(str(value))


def _unicode(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode()


def as_reported(metrics: Mapping[str, Any]) -> dict[str, Any] | None:
    """Plain metrics as a manifest keeps them, beside the numbers that they hold.

    A whole number of more than 18 digits is a float there. None if those numbers say all of it, and
    if it is more than a manifest should have.
    """
    if all(type(value) is float for value in metrics.values()):
        return None
    found = _with_small_numbers(dict(metrics))
    return found if _fits_manifest(found) else None


def returned_json(value: Any) -> Any:
    """What a training function returned as JSON, for a manifest.

    Raises TypeError, whose message says what is not JSON, or that it is too much.
    """
    found = _as_json(value)
    if not _fits_manifest(found):
        raise TypeError(f"more than {SMALL_BYTES} bytes or {_MOST_LEVELS} levels of JSON")
    return found


def _as_json(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {_unicode(str(key)): _as_json(one) for key, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_as_json(one) for one in value]
    # A state dict has millions of numbers.
    found = str(value) if _is_large(value) else plain(value)
    if isinstance(found, list):
        return _as_json(found)
    if isinstance(found, int) and abs(found) > LARGEST_NUMBER:
        raise TypeError(f"a whole number beyond {LARGEST_NUMBER}")
    if isinstance(found, str) and not isinstance(value, str):
        raise TypeError(f"a {type(value).__name__}")
    return found


def _fits_manifest(found: Any) -> bool:
    return _is_shallow(found, _MOST_LEVELS) and len(json.dumps(found)) <= SMALL_BYTES


def _is_shallow(found: Any, levels: int) -> bool:
    """Whether it has at most so many levels."""
    if not isinstance(found, (dict, list)):
        return True
    below = found.values() if isinstance(found, dict) else found
    return levels > 0 and all(_is_shallow(one, levels - 1) for one in below)


def _with_small_numbers(found: Any) -> Any:
    """With floats in place of whole numbers that not every reader of JSON reads."""
    if isinstance(found, dict):
        return {name: _with_small_numbers(one) for name, one in found.items()}
    if isinstance(found, list):
        return [_with_small_numbers(one) for one in found]
    return _as_float(found) if isinstance(found, int) and abs(found) > LARGEST_NUMBER else found


def _flat(metrics: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in metrics.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name}/")
        elif _is_large(value):
            # numpy and torch shorten it.
            yield name, str(value)
        else:
            found = plain(value)
            # A tensor of shape (1,) is the one number that it holds.
            while isinstance(found, list) and len(found) == 1:
                (found,) = found
            yield name, found


def _is_large(value: Any) -> bool:
    """Whether it is an array or a tensor of more than a few numbers."""
    return math.prod(getattr(value, "shape", ())) > _FEW


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")
