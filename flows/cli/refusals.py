"""What is wrong with the arguments of a command, in one line that names the argument."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import takewhile

from pydantic import ValidationError
from pydantic_settings import SettingsError

from train_core.config.json_text import parse_object
from train_core.errors import ConfigError
from train_core.text.shown_text import got

_JSON_FLAGS = ("--settings", "--runtime-env", "--train-loop-config", "--training")
_OF_A_FLAG = re.compile(r"Parsing error encountered for (?:\w+\.)*(\w+): ")


def with_plain_json(arguments: list[str]) -> list[str]:
    """The arguments, their JSON objects checked, and written as the library needs them.

    pydantic-settings looks for the ends of objects and of strings itself, by simpler rules than
    JSON's. Raises ConfigError for one that is none.
    """
    return list(_with_plain_json(arguments))


def of_values(error: ValidationError, arguments: list[str]) -> str:
    """What a model of arguments, or of a configuration file, refuses."""
    messages = []
    for one in error.errors(include_url=False):
        # The location begins with the commands' names.
        commands = zip(one["loc"], arguments, strict=False)
        count = sum(1 for _ in takewhile(lambda both: both[0] == both[1], commands))
        name = "".join(str(part) for part in one["loc"][count : count + 1])
        if one["type"] == "missing":
            messages.append(f"--{name} is required")
            continue
        message = one["msg"].removeprefix("Value error, ")
        messages.append(f"{name}: {message}{got(name, one['input'])}" if name else message)
    return "; ".join(messages)


def of_arguments(error: SettingsError) -> str:
    """What the parser of the command line refuses."""
    message = str(error).partition("\n")[0].removeprefix("error parsing CLI: ")
    # What follows are words about the library's own code.
    if found := _OF_A_FLAG.search(message):
        return f"--{found[1].replace('_', '-')}: its value is not understood; see --help"
    return message.removeprefix("Error: ")


def _with_plain_json(arguments: list[str]) -> Iterator[str]:
    flag = ""
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if flag:
            yield _plain(flag, argument)
            flag = ""
        elif equals and name in _JSON_FLAGS:
            yield f"{name}={_plain(name, value)}"
        else:
            yield argument
            flag = argument if argument in _JSON_FLAGS else ""


def _plain(flag: str, text: str) -> str:
    try:
        found = parse_object(text)
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}{got(flag, text)}") from error
    return json.dumps(found).replace("\\\\", "\\u005c").replace('\\"', "\\u0022")
