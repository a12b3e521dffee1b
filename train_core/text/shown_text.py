"""Text as people are shown it: on a terminal, in a log, on the pages of Prefect and MLflow.

What is stored or typed is not trusted: a name may hold sequences that a terminal obeys, a password,
or a hundred thousand letters. Pure functions; `policy/logins.py` masks the logins in whole JSON
values, and all output of commands goes through `flows/cli/output/terminal.py`.
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Iterable

HIDDEN = "***@"
"""What stands in place of `user:password@`."""
MOST_CHARS = 20_000
"""Of a message or a line of the log."""
MOST_IN_A_WORD = 4_096
"""As many as the path of a file may have."""
LOGIN = re.compile(
    # A password with a slash is no valid URL, and a password nevertheless; a port is none. It has a
    # bound: many addresses in one long word would take time that grows with its square.
    r"(?<=://)[^/\s@:\[]*:(?:[^/\s]*|(?!\d+/)[^\s\"'?#,;]{0,200})@"
)
_SECRET_PARAMETER = re.compile(
    r"""(?<=[?&;])
        ([\w.-]{0,40}(?:password|passwd|pwd|secret|token|signature|credential|api_?key)[\w.-]{0,40}|sig)
        =[^&;\s'"]*""",
    re.IGNORECASE | re.VERBOSE,
)
_LONG_WORD = re.compile(rf"\S{{{MOST_IN_A_WORD + 1},}}")
_LONGEST_INT = 10**100


def without_logins(text: str) -> str:
    """The text, with `***@` in place of the login of each URL."""
    return LOGIN.sub(HIDDEN, text) if "://" in text else text


def without_secrets(text: str) -> str:
    """The text without the logins of its URLs, and without the secrets among their parameters."""
    if "://" not in text:
        return text
    return _SECRET_PARAMETER.sub(r"\1=***", without_logins(text))


def escaped(text: str, keeps: str = "") -> str:
    r"""The text, with `\x1b` in place of the character 27, and so on.

    Printable characters stay, and those of `keeps`; all others could move the cursor, change the
    terminal, or turn the direction of what follows.
    """
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keeps else char.encode("unicode_escape").decode()
        for char in text
    )


def few_of(names: Iterable[str], most: int = 5) -> str:
    """The first few names, quoted, for a message."""
    ordered = sorted(names)
    more = ", …" if len(ordered) > most else ""
    return ", ".join(map(repr, ordered[:most])) + more


def cut(text: str, most: int) -> str:
    """The first `most` characters of the text, and a note that says how many are left out."""
    return text if len(text) <= most else f"{text[:most]}…({len(text) - most} more characters)"


def shown(text: str, most: int = MOST_CHARS, keeps: str = "") -> str:
    """The text without secrets and control characters; long words and the whole are cut."""
    text = without_secrets(text)
    if len(text) > MOST_IN_A_WORD:
        text = _LONG_WORD.sub(lambda word: cut(word[0], MOST_IN_A_WORD), text)
    return escaped(cut(text, most), keeps)


def shown_value(value: object) -> str:
    """A value that was given, as Python writes it, in short."""
    return without_secrets(_SHORT.repr(value))


def got(name: str, value: object) -> str:
    """How a message on a parameter ends: with the value that was given.

    Of a runtime environment nothing is shown: its variables may be secrets.
    """
    if name.strip("-").replace("-", "_") == "runtime_env":
        return ""
    return f", got {shown_value(value)}"


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 200
        self.maxdict = self.maxlist = self.maxtuple = self.maxset = 20
        self.maxlevel = 5

    def repr_int(self, x: int, level: int) -> str:
        # Python itself refuses to write numbers of several thousand digits.
        if abs(x) >= _LONGEST_INT:
            return f"a number of {x.bit_length()} bits"
        return repr(x)

    def repr_str(self, x: str, level: int) -> str:
        return repr(cut(without_secrets(x), self.maxstring))


_SHORT = _Short()
