"""How many workers an attempt begins with, and when another attempt with others would be better."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class MembershipRules:
    """How many workers may train together, and how long a look at the room counts as passing."""

    fewest: int
    most: int
    can_grow: bool = True
    """Whether free resources say that there is room for more."""
    settle_s: float = 5.0
    """How long resources of workers that ended may be on their way back."""
    grow_after_s: float = 10.0
    """How long there has to be room for more, before all begin again with more."""


def keeps_workers(*, is_placed: bool, drained: Collection[str]) -> bool:
    """Whether the workers that are there train next, all of which a new attempt wants.

    Others begin where resources are missing, and where a node with workers is to be taken away.
    """
    return is_placed and not drained


def workers_to_begin(room: int, waited_s: float, rules: MembershipRules) -> int | None:
    """How many workers begin now, where there is room for so many; None: wait for more room."""
    if room >= rules.most:
        return rules.most
    return room if room >= rules.fewest and waited_s > rules.settle_s else None


def has_room_for_more(workers: int, room: int, rules: MembershipRules) -> bool:
    """Whether so many workers could be joined by others, with room for so many beside them."""
    return rules.can_grow and workers < rules.most and room > 0


def reason_to_move(
    workers: int, drained: Collection[str], room_for_s: float, rules: MembershipRules
) -> str:
    """Why another attempt would be better than one of so many workers; empty if it would not.

    `room_for_s` says for how long there has been room for more.
    """
    if drained:
        return f"node {', '.join(sorted(drained))} is being drained"
    if room_for_s > rules.grow_after_s:
        return f"there is room for more than {workers} workers"
    return ""
