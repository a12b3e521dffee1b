"""Errors from another process or from storage: whatever is read there, an error is raised."""

from __future__ import annotations

import errno
import json
import os
import socket
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from botocore.exceptions import ClientError

from train_core import errors
from train_core.described_errors import describe, rebuild
from train_core.errors import (
    EvertrainError,
    StageError,
    UserCodeError,
    WorkloadError,
    count_as_users,
    line_of_users_code,
    users_code,
    words_of,
)

_OURS = [
    value
    for value in vars(errors).values()
    if isinstance(value, type) and issubclass(value, EvertrainError)
]


class UsersError(EvertrainError):
    """A user's own, which the other process cannot import."""


@pytest.mark.parametrize(
    "name",
    [
        "Path",  # was never there
        "traceback",
        "Any",  # other names of the module, which are no errors
        "annotations",
        "Iterator",
        "contextmanager",
        "describe",
        "FAILED",
        "__builtins__",
        "UnknownError",
    ],
)
def test_a_type_that_is_no_error_of_ours_is_named(name: str) -> None:
    rebuilt = rebuild({"type": name, "facts": ["a", "b", "c"]})
    assert type(rebuilt) is StageError
    assert repr(name) in str(rebuilt)
    assert "'a', 'b', 'c'" in str(rebuilt)


@pytest.mark.parametrize(
    "described",
    [
        {},
        {"type": "StageError"},
        {"facts": ["train", "it failed", ""]},
        {"type": ["StageError"], "facts": ["train", "it failed", ""]},
        {"type": "StageError", "facts": "train"},
        {"type": "StageError", "facts": {"stage": "train"}},
        {"type": "StageError", "facts": ["train"]},
        {"type": "StageError", "facts": ["train", 7, ""]},
        {"type": "StoppedError", "facts": ["digits", "soon"]},
        {"type": "StoppedError", "facts": ["digits", 3, "more"]},
        {"type": "RunConflictError", "facts": ["digits", {"seed": 1}]},
        {"type": "UnsavedError", "facts": [None, 3, None, "x"]},
        {"type": "ConfigError", "facts": [{"a": "b"}]},
        None,
        "StageError",
        ["StageError", ["train", "it failed", ""]],
    ],
    ids=repr,
)
def test_what_describes_no_error_is_shown(described: Any) -> None:
    rebuilt = rebuild(described)
    assert type(rebuilt) is StageError
    assert repr(described) in str(rebuilt)


@pytest.mark.parametrize("kind", _OURS, ids=lambda kind: kind.__name__)
def test_every_error_travels(kind: type[EvertrainError]) -> None:
    """One that is added here and not to the table would arrive as an unknown one."""
    made = {
        "RunConflictError": ("digits", {"seed": (1, 2)}),
        "StoppedError": ("digits", 7),
        "FencedError": (1, 2),
        "UnsavedError": (3600.0, 7, None, "x"),
        "NotFiniteError": (7, 1.5, "step-00000003-a0001", "the loss"),
        "RunBusyError": ("digits", "a process"),
    }
    facts = made.get(kind.__name__, ("x", "y", "z") if issubclass(kind, StageError) else ("x",))
    error = kind(*facts)
    rebuilt = rebuild(json.loads(json.dumps(describe("train", error))))
    assert (type(rebuilt), str(rebuilt), vars(rebuilt)) == (kind, str(error), vars(error))


@pytest.mark.parametrize("fact", [Path("data"), {1}, object, b"\xff", float("nan")])
def test_an_error_whose_facts_are_no_json_travels_as_text(fact: object) -> None:
    error = WorkloadError(fact)
    rebuilt = rebuild(json.loads(json.dumps(describe("train", error))))
    assert (type(rebuilt), str(rebuilt)) == (WorkloadError, str(error))


def test_a_users_own_error_is_the_nearest_of_ours() -> None:
    rebuilt = rebuild(describe("train", UsersError("mine")))
    assert (type(rebuilt), str(rebuilt)) == (EvertrainError, "mine")


def test_no_part_of_a_stages_error_has_a_password() -> None:
    error = StageError("train", "s3://me:hunter2@host/x is away", "at s3://me:hunter2@host/x")
    for shown in (
        str(error),
        error.summary,
        error.traceback,
        str(rebuild(describe("train", error))),
    ):
        assert "hunter2" not in shown
        assert "host/x" in shown


TRACEBACK = """Training failed due to worker errors:
[Rank 0,1 Error Snippet]:
Traceback (most recent call last):
  File "/opt/venv/lib/python3.11/site-packages/ray/train/thread_runner.py", line 9, in run
    function()
  File "/home/ann/nightly/table.py", line 41, in train_table
    step(config["lr"])
  File "/home/ann/nightly/table.py", line 12, in step
    torch.optim.SGD(lr=rate)
  File "/opt/venv/lib/python3.11/site-packages/torch/optim/sgd.py", line 64, in __init__
    raise ValueError(lr)
"""


@pytest.mark.parametrize(
    ("traceback", "shown"),
    [
        (TRACEBACK, "train: rank 0: ValueError: -1 (table.py, line 12, in step)"),
        ('  File "<string>", line 1, in <module>\n', "train: rank 0: ValueError: -1"),
        ("", "train: rank 0: ValueError: -1"),
    ],
)
def test_an_error_of_the_users_code_names_its_innermost_line(traceback: str, shown: str) -> None:
    error = UserCodeError.raised_by("train", "rank 0", ValueError(-1), traceback)
    assert str(error) == shown
    travelled = rebuild(json.loads(json.dumps(describe("train", error))))
    assert (str(travelled), travelled.__class__) == (shown, UserCodeError)


def test_code_that_is_run_here_names_its_line() -> None:
    at_place = (
        r"^infer: a\.parquet: ZeroDivisionError: .* \(test_errors\.py, line \d+, in test_code_"
    )
    with pytest.raises(UserCodeError, match=at_place), users_code("infer", "a.parquet"):
        1 / 0  # noqa: B018 (it is there to fail)


def _raised_in_users_code(error: Exception) -> Exception:
    try:
        raise error  # noqa: TRY301 (it is to have a line of this file)
    except Exception as raised:  # noqa: BLE001 (whatever the table has)
        return raised


def _caused(by: Exception) -> Exception:
    made = RuntimeError("the query failed")
    made.__cause__ = by
    return made


def _answered(status: int, code: str) -> ClientError:
    answer: Any = {"Error": {"Code": code}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "HeadObject")


_LostByAClient = type("ConnectionError", (OSError,), {})

ERRORS_OF_USERS_CODE = [
    (KeyError("no_such_column"), True),
    (FileNotFoundError("train.csv"), True),
    (NotImplementedError(), True),
    (MemoryError(), True),
    (OSError(errno.ENOSPC, "No space left on device"), True),
    (OSError("When reading information for key 'x': AWS Error ACCESS_DENIED"), True),
    (ValueError("AWS Error SLOW_DOWN"), True),
    (_answered(404, "NoSuchKey"), True),
    (type("SSLError", (_LostByAClient,), {})("a certificate of somebody else's"), True),
    (ConnectionResetError("the peer is gone"), False),
    (TimeoutError("no answer"), False),
    (_LostByAClient("no answer"), False),
    (type("EndpointConnectionError", (Exception,), {})("no answer"), False),
    (type("ReadTimeout", (Exception,), {})("no answer"), False),
    (_caused(type("ConnectError", (Exception,), {})("no answer")), False),
    (OSError("When reading information: AWS Error NETWORK_CONNECTION during HeadObject"), False),
    (_caused(OSError("When listing: AWS Error SLOW_DOWN during ListObjectsV2")), False),
    (_answered(503, "SlowDown"), False),
    (_caused(_answered(500, "InternalError")), False),
    (OSError(errno.ESTALE, "Stale file handle"), False),
    (OSError(errno.EIO, "Input/output error"), False),
    (OSError(errno.EHOSTUNREACH, "No route to host"), False),
    (socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution"), False),
]


@pytest.mark.promise("who-tries-again")
@pytest.mark.parametrize(("error", "is_users"), ERRORS_OF_USERS_CODE, ids=repr)
def test_an_error_in_the_users_code_is_the_users_unless_it_passes_by_itself(
    error: Exception, is_users: bool
) -> None:
    rebuilt = rebuild(describe("prepare", _raised_in_users_code(error)))
    assert type(rebuilt) is (UserCodeError if is_users else StageError)
    assert ("test_errors.py, line" in str(rebuilt)) is is_users


@pytest.mark.promise("who-tries-again")
@pytest.mark.parametrize(("error", "is_users"), ERRORS_OF_USERS_CODE, ids=repr)
def test_an_error_in_a_later_stage_has_the_same_answer(error: Exception, is_users: bool) -> None:
    with pytest.raises(StageError) as raised, users_code("evaluate", "shard 3"):
        raise error
    assert type(raised.value) is (UserCodeError if is_users else StageError)
    assert str(raised.value).startswith(f"evaluate: shard 3: {type(error).__name__}: ")


def test_an_error_that_was_set_aside_says_nothing_of_the_next_one() -> None:
    error = ValueError("no model")
    error.__context__, error.__suppress_context__ = ConnectionResetError("gone"), True
    with pytest.raises(UserCodeError, match="no model"), users_code("evaluate", ""):
        raise error


def test_a_library_whose_name_begins_as_the_users_package_does_is_no_code_of_the_users() -> None:
    site = os.path.join(os.sep, "venv", "site-packages", "users_data")
    module = ModuleType("users_data")
    module.__file__, module.__path__ = f"{site}/__init__.py", [site]  # type: ignore[attr-defined]  # of a package
    count_as_users(module)
    own, other = (f'  File "{site}{rest}", line 7, in load\n' for rest in ("/own.py", "sets/x.py"))
    assert line_of_users_code(own + other) == "own.py, line 7, in load"


def test_an_error_of_no_users_line_is_a_stages() -> None:
    error = OSError(28, "No space left on device")
    assert type(rebuild(describe("prepare", error))) is StageError


def test_a_message_of_many_lines_becomes_one_with_what_was_noted() -> None:
    error = ValueError("1 validation error\n  lr\n    Input should be a number")
    error.add_note("in sample 7")
    said = "ValueError: 1 validation error lr Input should be a number, in sample 7"
    assert words_of(error) == said
