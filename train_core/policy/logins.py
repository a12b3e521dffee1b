"""Names and passwords in URLs: a secret that is neither recorded nor shown."""

from __future__ import annotations

import re
from typing import Any

HIDDEN = "***@"
"""What stands in place of `user:password@`."""
_LOGIN = re.compile(r"(?<=://)[^/\s@:]*:[^/\s]*@")


def hide_logins(value: Any) -> Any:
    """The value, a JSON object or any part of one, without the logins in the URLs of its texts."""
    if isinstance(value, str):
        return _LOGIN.sub(HIDDEN, value)
    if isinstance(value, dict):
        return {name: hide_logins(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [hide_logins(inner) for inner in value]
    return value


def has_hidden_login(value: Any) -> bool:
    """Whether a URL, or one in a value as of `hide_logins`, was recorded without its login."""
    return f"://{HIDDEN}" in str(value)


def with_login_of(url: str, complete: str) -> str:
    """The recorded URL, its hidden login taken from another URL of the same host, if it has one."""
    login = _LOGIN.search(complete)
    if login is None or _host(url) != _host(hide_logins(complete)):
        return url
    return url.replace(HIDDEN, login[0], 1)


def _host(url: str) -> str:
    return url.partition(f"://{HIDDEN}")[2].partition("/")[0]
