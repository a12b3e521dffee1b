"""Which version a rollback goes back to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Reign(NamedTuple):
    """That a version became champion."""

    version: int
    is_rollback: bool
    """Whether somebody went back to it, so that what came after it is taken back."""


def champion_before(history: Iterable[Reign]) -> int | None:
    """The version that a rollback goes back to: the champion before the present one.

    `history` has the oldest first. What was rolled back is no champion to go back to: after 1, 2, 3
    and a rollback to 2, the next rollback goes to 1. None if there was no champion before.
    """
    standing: list[int] = []
    for version, is_rollback in history:
        if is_rollback and version in standing:
            del standing[standing.index(version) :]
        if not standing or standing[-1] != version:
            standing.append(version)
    return standing[-2] if len(standing) > 1 else None
