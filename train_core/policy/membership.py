"""How many workers an attempt begins with, and when another attempt with others would be better."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class MembershipRules:
    """How many workers may train together, and how long free resources must last to count."""

    fewest: int
    most: int
    settle_s: float
    """How long the resources of ended workers may take to become free."""
    grow_after_s: float
    """How long there must be room for more workers before another attempt begins with them."""
    can_grow: bool = True
    """Whether free resources say that there is room for more."""


def keeps_workers(*, is_placed: bool, drained: Collection[str]) -> bool:
    """Whether the next attempt keeps the current workers.

    They are replaced if some of them are not placed, and if a node on which one runs is drained.
    """
    return is_placed and not drained


def workers_to_begin(room: int, waited_s: float, rules: MembershipRules) -> int | None:
    """How many workers to start, if there is room for so many; None: wait for more room."""
    if room >= rules.most:
        return rules.most
    has_settled = waited_s > rules.settle_s
    return room if room >= rules.fewest and has_settled else None


SPARE_ROOM_BYTES = 2 * 2**30
"""The memory that must be left beside a spare which nobody has asked for."""


def why_no_spare(left_s: float | None, room_bytes: int, *, least_left_s: float) -> str:
    """Why a spare that nobody has asked for is not worth being started now; empty: it is.

    `left_s` is how long the training will go on, None if nobody knows; `room_bytes` the memory that
    the spare would leave.
    """
    if left_s is not None and left_s < least_left_s:
        return f"the training ends in {left_s:.0f} s"
    if room_bytes < SPARE_ROOM_BYTES:
        gib = 2**30
        return (
            f"it would leave {max(0, room_bytes) / gib:.1f} GiB of memory, less than "
            f"{SPARE_ROOM_BYTES / gib:.0f}; spares=1 starts one all the same"
        )
    return ""


def has_room_for_more(workers: int, room: int, rules: MembershipRules) -> bool:
    """Whether more than `workers` could train, if there is `room` for so many more."""
    return rules.can_grow and workers < rules.most and room > 0


def reason_to_move(
    workers: int, drained: Collection[str], room_for_s: float, rules: MembershipRules
) -> str:
    """Why another attempt should replace the running one of `workers`; empty: it should not.

    `room_for_s` says for how long there has been room for more.
    """
    if drained:
        return f"node {', '.join(sorted(drained))} is being drained"
    if room_for_s > rules.grow_after_s:
        return f"there is room for more than {workers} workers"
    return ""
