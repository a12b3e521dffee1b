"""Text for people: nothing that a terminal obeys, no password, and no end of it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from train_core.errors import ConfigError, StageError, StorageError
from train_core.text.shown_text import (
    MOST_CHARS,
    MOST_IN_A_WORD,
    cut,
    escaped,
    shown,
    shown_value,
    without_logins,
    without_secrets,
)


@given(st.text(st.characters(exclude_categories=[])))
def test_whatever_is_shown_can_be_printed(text: str) -> None:
    line = shown(text)
    assert line.isprintable()
    line.encode()
    assert len(line) < 10 * len(text) + 100


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("\x1b[31mred\x1b]0;title\x07", r"\x1b[31mred\x1b]0;title\x07"),
        ("a\nb\rc\td", r"a\nb\rc\td"),
        ("left\u202eto right", r"left\u202eto right"),
        ("\ud800", r"\ud800"),
        ("[bold]Ärger[/nope] ✓ 漢字", "[bold]Ärger[/nope] ✓ 漢字"),
    ],
)
def test_control_characters_are_escapes_and_the_others_stay(text: str, line: str) -> None:
    assert shown(text) == line


def test_lines_are_kept_where_they_are_wanted() -> None:
    assert escaped("a\n\tb\x1b", keeps="\n\t") == "a\n\tb\\x1b"


def test_a_name_of_120_kb_is_cut_with_a_note() -> None:
    line = shown(f"run {'x' * 120_000!r} is not there")
    assert line.startswith("run 'xxx")
    assert line.endswith(" is not there")
    assert f"…({120_002 - MOST_IN_A_WORD} more characters)" in line
    assert shown("a b " * 50_000).endswith(f"…({200_000 - MOST_CHARS} more characters)")
    assert cut("abc", 3) == "abc"


@pytest.mark.promise("secrets")
@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("at http://me:pw@host:80/x, not", "at http://***@host:80/x, not"),
        ("s3://a:b/c/d@bucket", "s3://***@bucket"),
        ("http://u:@h http://:p@h", "http://***@h http://***@h"),
        ("postgresql://h/db?user=me&password=pw&x=1", "postgresql://h/db?user=me&password=***&x=1"),
        ("https://h/x?X-Amz-Signature=abc&sig=d", "https://h/x?X-Amz-Signature=***&sig=***"),
    ],
)
def test_secrets_of_addresses_are_masked(text: str, line: str) -> None:
    assert without_secrets(text) == line
    assert without_secrets(line) == line


@pytest.mark.parametrize(
    "text",
    [
        "http://host:80/x@y",
        "http://[::1]:80/x@y",
        "models:/name@alias",
        "https://h/x?page=2&tokens",
        "abfs://container@account.dfs.core.windows.net/x",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert without_secrets(text) == text


@pytest.mark.parametrize(
    "text",
    ["://a:" * 30_000, "://" + "a:" * 60_000, "?token=" * 20_000, "?" + "token" * 24_000],
    ids=lambda text: text[:9],
)
def test_long_texts_take_no_time(text: str) -> None:
    began = time.process_time()
    shown("x://" + text)
    assert time.process_time() - began < 2


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("x" * 1000, f"'{'x' * 200}…(800 more characters)'"),
        (16**6000, "a number of 24001 bits"),
        ({"url": "ftp://a:b@c"}, "{'url': 'ftp://***@c'}"),
        (-7, "-7"),
    ],
    ids=["text", "number", "login", "small"],
)
def test_a_value_that_was_given_is_shown_in_short(value: object, text: str) -> None:
    assert shown_value(value) == text


def test_values_that_hold_themselves_or_are_deep_are_shown_in_short() -> None:
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    assert len(shown_value(deep)) < 100
    wide: list[object] = ["x"]
    for _ in range(30):
        wide = [wide] * 10
    assert len(shown_value(wide)) < 3_000_000


@pytest.mark.promise("secrets")
@pytest.mark.parametrize("kind", [ConfigError, StorageError])
def test_an_error_has_no_password_in_its_message(kind: type[Exception]) -> None:
    error = kind("cannot read s3://me:pw@host/x")
    for text in (str(error), repr(error), repr(error.args)):
        assert "pw" not in text
        assert "s3://***@host/x" in text
    stage = StageError("train", "http://me:pw@host", "Traceback: http://me:pw@host")
    assert "pw" not in repr(vars(stage)) + str(stage)


def test_a_login_alone_is_what_a_record_leaves_out() -> None:
    assert without_logins("http://a:b@h/x?sig=1") == "http://***@h/x?sig=1"
