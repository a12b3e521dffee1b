"""Names and passwords in URLs: a secret that is neither recorded nor shown."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import urlsplit

from train_core.text.shown_text import HIDDEN, LOGIN, without_logins, without_secrets


def hide_logins(value: Any) -> Any:
    """The value, a JSON object or any part of one, without the logins in the URLs of its texts."""
    return _mapped(value, without_logins)


def hide_secrets(value: Any) -> Any:
    """The value as of `hide_logins`, also without the secrets among the parameters of its URLs.

    It is there to be shown: `with_login_of` completes a URL that lacks its login only.
    """
    return _mapped(value, without_secrets)


def has_hidden_login(value: Any) -> bool:
    """Whether a URL, or one in a value as of `hide_logins`, was recorded without its login."""
    return f"://{HIDDEN}" in str(value)


def with_login_of(url: str, complete: str) -> str:
    """The recorded URL, its hidden login taken from another URL of the same host, if it has one."""
    login = LOGIN.search(complete)
    if login is None or _host(url) != _host(hide_logins(complete)):
        return url
    return url.replace(HIDDEN, login[0], 1)


def public_uri(uri: str) -> str:
    """The address without user, password and secret parameters: a link for everybody."""
    return without_secrets(without_login_of(uri, uri))


def without_login_of(text: str, uri: str) -> str:
    """`text` without the user and password that the address holds."""
    try:
        login, at, _ = urlsplit(uri).netloc.rpartition("@")
    except ValueError:
        # urlsplit refuses some addresses, such as one with a single bracket.
        found = LOGIN.search(uri)
        login, at = (found[0], "@") if found else ("", "")
    return text.replace(login + at, "") if at else text


def _host(url: str) -> str:
    return url.partition(f"://{HIDDEN}")[2].partition("/")[0]


def _mapped(value: Any, hide: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, dict):
        return {_mapped(name, hide): _mapped(inner, hide) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_mapped(inner, hide) for inner in value]
    return value
