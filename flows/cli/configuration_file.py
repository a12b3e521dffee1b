"""A YAML or JSON file of parameters: a small regular file, checked before and after it is parsed.

Only what JSON has is a value: a date stays a text, and `1e-3` is a number, as in YAML 1.2. An alias
(`*name`) stands for its values, which may be no more than a file without aliases can hold.
"""

from __future__ import annotations

import os
import re
import stat
from typing import Any

import yaml
from yaml.constructor import ConstructorError

from train_core.config.json_text import FLOAT_WITH_EXPONENT, MOST_DEPTH, MOST_DIGITS
from train_core.errors import ConfigError
from train_core.text.shown_text import cut

_TIMESTAMP = "tag:yaml.org,2002:timestamp"
_INT = "tag:yaml.org,2002:int"
_FLOAT = "tag:yaml.org,2002:float"
MOST_BYTES = 2**18
MOST_VALUES = 100_000
_SHOWN_CHARS = 200
_TOO_DEEP = f"its values are nested more than {MOST_DEPTH} deep"
_VALUES = (dict, list, str, int, float, type(None))


class _RefusedError(Exception):
    """The file is none of parameters; the message says why."""


_ERRORS = (
    *(_RefusedError, OSError, yaml.YAMLError),
    # Of a value with a tag of its own, such as `!!bool maybe`.
    *(ValueError, LookupError, ArithmeticError, TypeError, AttributeError),
)


class _ParametersLoader(yaml.SafeLoader):
    """YAML's values, as far as JSON has them."""


def _construct_int(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    if len(node.value) > MOST_DIGITS:
        reason = f"a number has {len(node.value)} digits, more than {MOST_DIGITS}"
        raise ConstructorError(None, None, reason, node.start_mark)
    return loader.construct_yaml_int(node)


_ParametersLoader.add_constructor(_INT, _construct_int)
_ParametersLoader.add_constructor(_TIMESTAMP, lambda _, node: node.value)
_ParametersLoader.add_implicit_resolver(
    _FLOAT, re.compile(rf"(?:{FLOAT_WITH_EXPONENT.pattern})$", re.ASCII), list("-+.0123456789")
)


def read_configuration(path: str) -> dict[str, Any]:
    """The parameters in a YAML or JSON file. Raises ConfigError."""
    try:
        return _parsed(_text_of(path))
    except _ERRORS as error:
        raise ConfigError(
            f"configuration {cut(path, _SHOWN_CHARS)!r} cannot be read: {_reason(error)}. "
            "Give a YAML or JSON file of parameters"
        ) from error


def _text_of(path: str) -> str:
    # Without waiting for somebody who writes into a pipe.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise _RefusedError("it is no regular file")
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise _RefusedError(f"it has more than {MOST_BYTES} bytes")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise _RefusedError(f"line {line} is not UTF-8 text") from error


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = yaml.load(text, _ParametersLoader)  # noqa: S506 (a safe loader)
    except RecursionError:
        raise _RefusedError(_TOO_DEEP) from None
    if not isinstance(found, dict):
        raise _RefusedError("it is not a mapping of parameters to values")
    _check_values(found)
    return found


def _check_values(found: dict[Any, Any]) -> None:
    """Refuse values that JSON lacks, and aliases that multiply what the file holds."""
    waiting: list[tuple[Any, int]] = [(found, 0)]
    seen = 0
    while waiting:
        value, depth = waiting.pop()
        if not isinstance(value, _VALUES):
            raise _RefusedError(
                f"a value in it is {type(value).__name__}, which JSON does not have"
            )
        if isinstance(value, (dict, list)):
            seen += len(value)
            inner = value.values() if isinstance(value, dict) else value
            waiting += [(one, depth + 1) for one in inner]
        if depth > MOST_DEPTH:
            raise _RefusedError(_TOO_DEEP)
        if seen > MOST_VALUES:
            raise _RefusedError(f"its aliases stand for more than {MOST_VALUES} values")


def _reason(error: Exception) -> str:
    match error:
        case _RefusedError():
            return str(error)
        case yaml.MarkedYAMLError(problem=str(problem), problem_mark=mark) if mark:
            return f"line {mark.line + 1}: {problem}"
        case OSError():
            return error.strerror or "it cannot be opened"
        case yaml.YAMLError():
            return "it is no YAML"
        case _:
            return "a value in it is not of the kind that its tag names"
