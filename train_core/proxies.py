"""This machine asks itself directly, and never through a proxy.

A proxy of the environment (`HTTP_PROXY`) is for what lies outside: asked for 127.0.0.1, it would
ask itself. Prefect's own server, an MLflow of this machine and the dashboard of a Ray cluster on it
are all at such addresses.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_NAMES = ("no_proxy", "NO_PROXY")


def ask_loopback_directly(environment: MutableMapping[str, str] = os.environ) -> None:
    """Let no client in this process, and in those that it starts, ask this machine by a proxy.

    Each program calls it as it begins: libraries read the variable when they make a client. Without
    a proxy in the environment nothing is set, as that would hide macOS's own settings.
    """
    if not any(name.lower().endswith("_proxy") for name in environment.keys() - set(_NAMES)):
        return
    given = [environment[name] for name in _NAMES if environment.get(name)]
    # The one in small letters counts where there are both.
    listed = [host.strip() for host in (given[0] if given else "").split(",") if host.strip()]
    if "*" not in listed:
        listed += [host for host in _LOOPBACK if host not in listed]
        environment.update(dict.fromkeys(_NAMES, ",".join(listed)))
