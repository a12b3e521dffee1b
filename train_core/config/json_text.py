"""JSON objects that somebody typed: parsed once, bounded, and refused in plain words."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable
from typing import Any

MOST_DEPTH = 100
MOST_DIGITS = 300
FLOAT_WITH_EXPONENT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)[eE][-+]?[0-9]+", re.ASCII)
"""A number as JSON and YAML 1.2 read it (`1e-3`): a text for YAML 1.1, as PyYAML reads files."""


_TOO_DEEP = f"its brackets are more than {MOST_DEPTH} deep"


def object_of(value: object) -> object:
    """The value, parsed if it is a text of JSON, as of a flag. Raises ValueError."""
    return parse_object(value) if isinstance(value, str) else value


def parse_object(text: str) -> dict[str, Any]:
    """The JSON object that the text holds. Raises ValueError, which says what is wrong with it."""
    try:
        found = json.loads(text, parse_int=_int, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"give a JSON object, as '{{\"name\": 1}}': from character {error.pos + 1} on this is "
            "no JSON"
        ) from error
    # Python's parser counts, too, and stops before the stack ends.
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None
    if _is_deeper(found, MOST_DEPTH):
        raise ValueError(_TOO_DEEP)
    if not isinstance(found, dict):
        raise ValueError("give a JSON object, as '{\"name\": 1}'")  # noqa: TRY004 (pydantic's)
    return found


def with_numbers(value: Any) -> Any:
    """The value, in which each text that is a number with an exponent is that number.

    Prefect reads prefect.yaml as YAML 1.1, which takes `lr: 1e-3` for a text. Where nothing says
    what type a value has, such a text was meant as a number.
    """
    if isinstance(value, dict):
        return {name: with_numbers(one) for name, one in value.items()}
    if isinstance(value, list):
        return [with_numbers(one) for one in value]
    if isinstance(value, str) and FLOAT_WITH_EXPONENT.fullmatch(value):
        return float(value) if math.isfinite(float(value)) else value
    return value


def _is_deeper(value: Any, most: int) -> bool:
    """Whether more than `most` objects and lists are nested in one another."""
    level = [value]
    for _ in range(most):
        nested = [one for one in level if isinstance(one, (dict, list))]
        level = [one for group in nested for one in _members(group)]
    return any(isinstance(one, (dict, list)) for one in level)


def _members(group: dict[str, Any] | list[Any]) -> Iterable[Any]:
    return group.values() if isinstance(group, dict) else group


def _int(digits: str) -> int:
    if len(digits) > MOST_DIGITS:
        raise ValueError(f"a number in it has {len(digits)} digits, more than {MOST_DIGITS}")
    return int(digits)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"it gives {name!r} twice")
    return found
