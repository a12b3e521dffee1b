"""Whether some objects can be reached from another one."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from types import CodeType, FunctionType, ModuleType

_MOST_WALKED = 1_000_000
"""Objects: so many take about half a second."""
_SHARED = (type, ModuleType, CodeType)
"""All objects of a process share these: what they refer to is not told from the rest of it."""


def may_refer(root: object, targets: Iterable[object]) -> bool:
    """Whether a target can be reached from `root`, by anything but what a whole process shares.

    True as well where more objects than a limit can be reached.
    """
    wanted = {id(one) for one in targets}
    seen: set[int] = set()
    found = [root]
    while found:
        one = found.pop()
        if id(one) in wanted:
            return True
        # What the collector does not track, as a tuple of strings, refers to nothing that it does.
        if isinstance(one, _SHARED) or not gc.is_tracked(one) or id(one) in seen:
            continue
        if len(seen) == _MOST_WALKED:
            return True
        seen.add(id(one))
        found.extend(_referents(one))
    return False


def _referents(one: object) -> Iterable[object]:
    if isinstance(one, FunctionType):
        # Without the globals of its module.
        return (one.__closure__, one.__defaults__, one.__kwdefaults__, one.__dict__)
    return gc.get_referents(one)
