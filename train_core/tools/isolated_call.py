"""The other side of `train_core.client.isolated`: one function, run in this process.

`python -m train_core.tools.isolated_call MODULE:FUNCTION`, with the arguments as a JSON
object on stdin: they may be longer than a command line may be, and may hold a login, which no list
of processes may show.

The result goes to stdout as JSON, and so does an error, described: the exit code tells them apart.
What a user's module prints goes to stderr, and so does what the programs print that it starts, and
what evertrain warns of.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from typing import Any

from pydantic_core import to_jsonable_python

from train_core.described_errors import FAILED, describe
from train_core.proxies import ask_loopback_directly
from train_core.text.log_lines import set_up_own_logging


def call(function: str, arguments: dict[str, Any]) -> Any:
    """Call the function `module:name`; its result, ready for JSON."""
    module, _, name = function.partition(":")
    return to_jsonable_python(getattr(importlib.import_module(module), name)(**arguments))


def main() -> None:
    """Entry point: the function's name."""
    function, code = sys.argv[1], 0
    ask_loopback_directly()
    with os.fdopen(os.dup(sys.stdout.fileno()), "w") as answer:
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        set_up_own_logging(sys.stderr)
        try:
            result = call(function, json.load(sys.stdin))
        # A user's module may end the interpreter as it is imported.
        except (Exception, SystemExit) as error:  # noqa: BLE001 (the other process raises it)
            result, code = describe(function.rpartition(":")[2], error), FAILED
        answer.write(json.dumps(result))
    sys.exit(code)


if __name__ == "__main__":
    main()
