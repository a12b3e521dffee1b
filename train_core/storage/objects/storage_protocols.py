"""Which of fsspec's protocols can be a storage: those that an address alone opens."""

from __future__ import annotations

import inspect

from fsspec import get_filesystem_class
from fsspec.utils import get_protocol

from train_core.errors import ConfigError
from train_core.text.shown_text import cut

_OF_OTHERS = frozenset(
    {
        *("async_wrapper", "asyncwrapper", "blockcache", "cached", "data", "dir", "filecache"),
        *("generic", "libarchive", "reference", "simplecache", "tar", "zip"),
    }
)
"""Views of another storage or of a file: some of them open what is in the current directory."""
_SHOWN_CHARS = 200


def refuse_unserved(url: str) -> None:
    """Raise ConfigError if evertrain cannot open a storage by that URL alone."""
    protocol = get_protocol(url)
    before, _, chained = url.partition("::")
    if chained and "://" not in before:
        reason = "addresses joined by '::' are views of another storage: give that one's address"
    elif protocol in _OF_OTHERS:
        reason = f"{protocol} is a view of another storage: give that one's address"
    else:
        reason = _lack(protocol)
    if not reason:
        return
    raise ConfigError(f"storage {cut(url, _SHOWN_CHARS)!r} cannot be used: {reason}")


def _lack(protocol: str) -> str:
    """What the protocol's client lacks to be made; empty: nothing."""
    try:
        client = get_filesystem_class(protocol)
    except (ValueError, ImportError) as error:
        return str(error)
    # Its metaclass, which keeps instances, takes any arguments.
    _, *parameters = inspect.signature(client.__init__).parameters.values()
    kinds = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    needed = [
        one.name
        for one in parameters
        if one.default is inspect.Parameter.empty and one.kind in kinds
    ]
    if not needed:
        return ""
    return f"its client needs {', '.join(needed)}, which evertrain does not pass to it"
