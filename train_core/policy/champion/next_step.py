"""What follows for a version: from the gate's decisions on it, and from what people answered. Pure.

An approval is one of a comparison with one champion. A rejection is final for the version: what was
rejected is compared again only as a new version.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from train_core.policy.champion.gate_decision import Outcome


class NextStep(StrEnum):
    """What follows for a version."""

    SERVES = "serves"
    """Nothing: it is the champion."""
    REJECTED = "rejected"
    """Nothing: a person has rejected it, in comparison with whomever."""
    COMPARE = "compare"
    """The gate compares it with the present champion."""
    PROMOTE = "promote"
    """It becomes champion: the gate has decided so, or a person has approved it."""
    WAIT = "wait"
    """A person is asked, and has not answered."""
    KEPT = "kept"
    """Nothing: the champion stays."""


@dataclass(frozen=True)
class Decided:
    """A decision of the gate on the version."""

    champion_number: int
    """The entry of the champion that the version was compared with; 0: there was none."""
    outcome: Outcome
    is_approved: bool | None = None
    """What a person answered; None: nobody has."""


def next_step(decisions: Sequence[Decided], champion_number: int, *, serves: bool) -> NextStep:
    """What follows for the version of these decisions, while that entry has the champion.

    `serves`: the champion is this version, be it by a person who went back to it.
    """
    if serves:
        return NextStep.SERVES
    if any(one.is_approved is False for one in decisions):
        return NextStep.REJECTED
    for one in decisions:
        if one.champion_number == champion_number:
            return _carried_out(one)
    return NextStep.COMPARE


def _carried_out(decision: Decided) -> NextStep:
    if decision.outcome != Outcome.ASK:
        return NextStep.PROMOTE if decision.outcome == Outcome.PROMOTE else NextStep.KEPT
    return NextStep.PROMOTE if decision.is_approved else NextStep.WAIT
